// Kernel values in the place of inner products, or of distances. A thread walks down a column.

extern "C" __global__ void radial(REAL* S, i64 stride, i32 n, i32 p, const REAL* x_norms, const REAL* z_norms,
                                  const REAL* x_factors, const REAL* z_factors, REAL a, REAL b, REAL c) {
  const Profile kernel = prepared(a, b, c);
  i32 j = blockIdx.x * blockDim.x + threadIdx.x;
  if (j >= p) return;
  Side z = center_side(z_norms, z_factors, j, kernel);
  i32 i = blockIdx.y, apart = gridDim.y;
  REAL* at = S + stride * i + j;
  for (; i + 3 * apart < n; i += 4 * apart, at += 4 * apart * stride) {
    REAL s[4];
#pragma unroll
    for (i32 k = 0; k < 4; k++) s[k] = at[k * apart * stride];
#pragma unroll
    for (i32 k = 0; k < 4; k++)
      at[k * apart * stride] = value_of(s[k], row_side(x_norms, x_factors, i + k * apart, kernel), z, kernel);
  }
  for (; i < n; i += apart, at += apart * stride)
    *at = value_of(*at, row_side(x_norms, x_factors, i, kernel), z, kernel);
}
