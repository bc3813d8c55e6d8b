// Kernel values in the place of inner products, or of distances. A thread walks down a column.

extern "C" __global__ void radial(REAL* S, i64 stride, i32 n, i32 p, const REAL* x_norms, const REAL* z_norms,
                                  const REAL* x_factors, const REAL* z_factors, REAL a, REAL b, REAL c, REAL floor) {
  const Profile kernel = {a, b, c, floor};
  i32 j = blockIdx.x * blockDim.x + threadIdx.x;
  if (j >= p) return;
  Side z = side(z_norms, z_factors, j, REAL(1));
#pragma unroll 4
  for (i32 i = blockIdx.y; i < n; i += gridDim.y) {
    REAL* at = S + stride * i + j;
    *at = value_of(*at, side(x_norms, x_factors, i, REAL(-2)), z, kernel);
  }
}
