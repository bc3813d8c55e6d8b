// A radial kernel as a function of the squared distance s: see radial_coefficients in backends/base.py. KIND is the
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
  REAL a, b, c, floor;
};

__device__ __forceinline__ REAL profile(REAL s, const Profile& k) {
#if KIND < 0
  return s;
#else
#if KIND == GAUSSIAN
  REAL value = exponential(-(k.a * s));
#elif KIND == CAUCHY
  REAL value = REAL(1) / (REAL(1) + k.a * s);
#elif KIND == EXPONENTIAL_POWER
  REAL value = exponential(-pow(k.a * s, k.b));
#elif KIND == LAPLACE
  REAL value = exponential(-square_root(k.a * s));
#else
  REAL t = square_root(k.a * s);
  REAL value = (REAL(1) + t * (k.b + t * k.c)) * exponential(-t);
#endif
  return value < smallest(value) ? REAL(0) : value;  // in this order a NaN stays a NaN
#endif
}

// What a row and a center add to a value: squared norms, and with FACTORS powers of two by which inner products of split
// rows have to be multiplied.
struct Side {
  REAL norm, factor;
};

__device__ __forceinline__ Side side(const REAL* norms, const REAL* factors, i64 at, REAL unscaled) {
  Side found = {REAL(0), unscaled};
#if KIND != VALUES && !READY
  found.norm = norms[at];
#if FACTORS
  found.factor = unscaled * factors[at];
#endif
#endif
  return found;
}

// The kernel value of an inner product. READY says that s is a distance already, as in the L1 norm.
__device__ __forceinline__ REAL value_of(REAL s, const Side& x, const Side& z, const Profile& k) {
#if KIND == VALUES
  return s;
#else
#if !READY
  REAL size = x.norm + z.norm;
#if FACTORS
  s = size + x.factor * z.factor * s;
#else
  s = size - (s + s);
#endif
  s = s < k.floor * size ? REAL(0) : s;
#endif
  return profile(s, k);
#endif
}
