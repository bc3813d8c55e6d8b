// Distances in the L1 norm, and sums over centers by the sign of a difference.

// Σ_k |x_ik − z_jk|: a block has 32 rows and 32 centers, and each of its 16 × 16 threads two of each.
#define SIDE 32
#define DEPTH 16
extern "C" __global__ void manhattan(const REAL* X, i64 x_stride, const REAL* Z, i64 z_stride, REAL* out, i64 stride,
                                     i32 n, i32 p, i32 d) {
  __shared__ REAL of_x[DEPTH][SIDE + 1], of_z[DEPTH][SIDE + 1];
  i32 across = threadIdx.x % 16, down = threadIdx.x / 16, column = blockIdx.x * SIDE;
  for (i32 row = blockIdx.y * SIDE; row < n; row += gridDim.y * SIDE) {
    REAL sums[2][2] = {{0, 0}, {0, 0}};
    for (i32 start = 0; start < d; start += DEPTH) {
      for (i32 e = threadIdx.x; e < SIDE * DEPTH; e += 256) {
        i32 r = e / DEPTH, k = e % DEPTH;
        bool inside = start + k < d;
        of_x[k][r] = inside && row + r < n ? X[x_stride * (row + r) + start + k] : REAL(0);
        of_z[k][r] = inside && column + r < p ? Z[z_stride * (column + r) + start + k] : REAL(0);
      }
      __syncthreads();
#pragma unroll
      for (i32 k = 0; k < DEPTH; k++)
        for (i32 u = 0; u < 2; u++)
          for (i32 v = 0; v < 2; v++) sums[u][v] += fabs(of_x[k][down + 16 * u] - of_z[k][across + 16 * v]);
      __syncthreads();
    }
    for (i32 u = 0; u < 2; u++)
      for (i32 v = 0; v < 2; v++) {
        i32 i = row + down + 16 * u, j = column + across + 16 * v;
        if (i < n && j < p) out[stride * i + j] = sums[u][v];
      }
  }
}

// Σ_j P_ij sign(x_ik − z_jk).
extern "C" __global__ void signed_sums(const REAL* P, i64 p_stride, const REAL* X, i64 x_stride, const REAL* Z,
                                       i64 z_stride, REAL* out, i64 stride, i32 n, i32 p, i32 d) {
  i32 k = blockIdx.x * blockDim.x + threadIdx.x;
  if (k >= d) return;
  for (i32 i = blockIdx.y; i < n; i += gridDim.y) {
    REAL x = X[x_stride * i + k], total = 0;
    for (i32 j = 0; j < p; j++) {
      REAL difference = x - Z[z_stride * j + k];
      total += difference > 0 ? P[p_stride * i + j] : difference < 0 ? -P[p_stride * i + j] : REAL(0);
    }
    out[stride * i + k] = total;
  }
}
