// Kernels of angles in the place of inner products, and waves in the place of angles. A thread walks down a column.

#ifndef ANGLES
#define ANGLES 0
#endif

// Arc-cosine kernels and the neural tangent kernel: see Backend.angular. ANGLES is the number in ANGULAR_KINDS.
extern "C" __global__ void angular(REAL* S, i64 stride, i32 n, i32 p, const REAL* x_norms, const REAL* z_norms,
                                   const REAL* x_sizes, const REAL* z_sizes, i32 depth) {
  const REAL one = REAL(1), pi = REAL(3.14159265358979323846);
  i32 j = blockIdx.x * blockDim.x + threadIdx.x;
  if (j >= p) return;
  for (i32 i = blockIdx.y; i < n; i += gridDim.y) {
    REAL u = 0;
    if (x_norms[i] > 0 && z_norms[j] > 0) u = S[stride * i + j] / sqrt(x_norms[i]) / sqrt(z_norms[j]);
    u = u > one ? one : u < -one ? -one : u;
    REAL tangent = u;
    for (i32 layer = 0; layer < depth; layer++) {
      REAL rest = one - acos(u) / pi, sine = sqrt((one - u) * (one + u)) / pi;
#if ANGLES == 0
      u = rest;
#elif ANGLES == 2
      u = u * sine + rest * (one + (u * u + u * u)) / REAL(3);
#else
      u = sine + u * rest;
      tangent = u + tangent * rest;
#endif
      u = u > one ? one : u < -one ? -one : u;
    }
    S[stride * i + j] = (ANGLES == 3 ? tangent : u) * x_sizes[i] * z_sizes[j];
  }
}

// scale × cos(2π (S + phase)), the phase of each column.
extern "C" __global__ void cosines(REAL* S, i64 stride, i32 n, i32 p, const REAL* phases, REAL scale) {
  i32 j = blockIdx.x * blockDim.x + threadIdx.x;
  if (j >= p) return;
  for (i32 i = blockIdx.y; i < n; i += gridDim.y) {
    REAL turns = S[stride * i + j] + phases[j];
    S[stride * i + j] = scale * cospi(REAL(2) * (turns - floor(turns + REAL(0.5))));
  }
}
