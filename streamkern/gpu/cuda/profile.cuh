// A radial kernel as a function of the squared distance s: see radial_coefficients in engine/elementwise.py. KIND is the
// number of the profile in RADIAL_KINDS; -1 keeps the distances, and -2 takes S for the values themselves.

#define LAPLACE 0
#define MATERN32 1
#define MATERN52 2
#define GAUSSIAN 3
#define CAUCHY 4
#define EXPONENTIAL_POWER 5
#define VALUES -2
#define DISTANCES -1

#ifndef KIND
#define KIND VALUES
#endif
#ifndef FACTORS
#define FACTORS 0
#endif
#ifndef READY
#define READY 0
#endif

struct Profile {
  REAL a, b, c;
};

// The profile as ``profile`` takes it, of a distance that is multiplied by a already: where the value is a power of a multiple
// of a root, or of the distance, a power of two.
__device__ __forceinline__ Profile prepared(REAL a, REAL b, REAL c) {
#if KIND == LAPLACE
  a *= LOG2E * LOG2E;
#elif KIND == GAUSSIAN
  a *= LOG2E;
#elif KIND < 0
  a = REAL(1);
#endif
  return {a, b, c};
}

// 0 for a subnormal number, which would make later products many times slower; a NaN stays a NaN.
__device__ __forceinline__ float flushed(float x) { return x < 1.17549435e-38f ? 0.0f : x; }
__device__ __forceinline__ double flushed(double x) { return x < 2.2250738585072014e-308 ? 0.0 : x; }

// A power of two of float is never subnormal.
__device__ __forceinline__ float power(float x) { return power_of_two(x); }
__device__ __forceinline__ double power(double x) { return flushed(power_of_two(x)); }

__device__ __forceinline__ REAL profile(REAL s, const Profile& k) {
#if KIND < 0
  return s;
#elif KIND == GAUSSIAN
  return power(-s);
#elif KIND == CAUCHY
  return flushed(reciprocal(REAL(1) + s));
#elif KIND == EXPONENTIAL_POWER
  return power(-LOG2E * pow(s, k.b));
#elif KIND == LAPLACE
  return power(-square_root(s));
#else
  REAL t = square_root(s);
  return flushed((REAL(1) + t * (k.b + t * k.c)) * power_of_two(-LOG2E * t));
#endif
}

// What a row and a center add to a value: squared norms times a, and the numbers by which an inner product is multiplied: of
// a row −2 a, and with FACTORS the powers of two of split rows.
struct Side {
  REAL norm, factor;
};

__device__ __forceinline__ Side side(const REAL* norms, const REAL* factors, i64 at, REAL a, REAL unscaled) {
  Side found = {REAL(0), unscaled};
#if KIND != VALUES && !READY
  found.norm = a * norms[at];
#if FACTORS
  found.factor = unscaled * factors[at];
#endif
#endif
  return found;
}

// The share of the squared norms below which a squared distance is 0: ``coincident`` in engine/elementwise.py.
__device__ __forceinline__ bool coincides(float s, float size) { return s < 0.0f; }
__device__ __forceinline__ bool coincides(double s, double size) { return s < 1.7763568394002505e-15 * size; }

// The kernel value of an inner product. READY says that s is a distance already, as in the L1 norm.
__device__ __forceinline__ REAL value_of(REAL s, const Side& x, const Side& z, const Profile& k) {
#if KIND == VALUES
  return s;
#elif READY
  return profile(k.a * s, k);
#else
  REAL size = x.norm + z.norm;
#if FACTORS
  s = x.factor * z.factor * s + size;
#else
  s = x.factor * s + size;
#endif
  return profile(coincides(s, size) ? REAL(0) : s, k);
#endif
}

__device__ __forceinline__ Side row_side(const REAL* norms, const REAL* factors, i64 at, const Profile& k) {
  return side(norms, factors, at, k.a, REAL(-2) * k.a);
}

__device__ __forceinline__ Side center_side(const REAL* norms, const REAL* factors, i64 at, const Profile& k) {
  return side(norms, factors, at, k.a, REAL(1));
}
