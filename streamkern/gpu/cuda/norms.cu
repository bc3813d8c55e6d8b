// Squared norms of rows, rows split into halves, and the first row that is not finite.

// Σ_j x_ij², a warp for each row, in double and rounded once.
extern "C" __global__ void row_norms(const REAL* X, i64 stride, i32 n, i32 d, REAL* out) {
  i32 lane = threadIdx.x % 32, warps = blockDim.x / 32;
  for (i32 i = blockIdx.x * warps + threadIdx.x / 32; i < n; i += gridDim.x * warps) {
    double total = 0;
    for (i32 j = lane; j < d; j += 32) {
      double x = X[stride * i + j];
      total += x * x;
    }
    total = warp_sum(total);
    if (lane == 0) out[i] = REAL(total);
  }
}

// Rows as sums of two numbers of 16 bits, for products on tensor cores: x = 2^-k (high + low) with k such that the largest
// number of the row lies in [2^9, 2^10). Of rows out is [high, low, high], of centers [low, high, high], so that one product
// of three times their width, d and zeros, is high·low + low·high + high·high, in this order: tensor cores cut sums off
// where they add, and sums of the first two are small. Norms are those of row_norms; factors are 2^-k.
extern "C" __global__ void split_rows(const float* X, i64 stride, i32 n, i32 d, i32 width, u16* out, float* norms,
                                      float* factors, i32 centers) {
  i32 lane = threadIdx.x % 32, warps = blockDim.x / 32;
  for (i32 i = blockIdx.x * warps + threadIdx.x / 32; i < n; i += gridDim.x * warps) {
    double total = 0;
    float largest = 0;
    for (i32 j = lane; j < d; j += 32) {
      float x = X[stride * i + j];
      total += double(x) * x;
      largest = fmaxf(largest, fabsf(x));
    }
    total = warp_sum(total);
    for (int step = 16; step > 0; step /= 2) largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, step));
    i32 exponent = largest > 0 && largest < 3e38f ? 9 - ilogbf(largest) : 0;
    exponent = exponent > 100 ? 100 : exponent;
    float up = ldexpf(1.0f, exponent);
    u16* row = out + i64(3) * width * i;
    for (i32 j = lane; j < width; j += 32) {
      float x = j < d ? up * X[stride * i + j] : 0.0f;
      u16 high = half_of(x), low = half_of(x - from_half(high));
      row[j] = centers ? low : high;
      row[width + j] = centers ? high : low;
      row[2 * width + j] = high;
    }
    if (lane == 0) {
      norms[i] = float(total);
      factors[i] = ldexpf(1.0f, -exponent);
    }
  }
}

// The first row with a NaN or an infinity; first[0] is the number of rows before.
extern "C" __global__ void first_bad_row(const REAL* X, i64 stride, i32 n, i32 d, i64* first) {
  for (i32 i = blockIdx.y * blockDim.y + threadIdx.y; i < n; i += gridDim.y * blockDim.y)
    for (i32 j = blockIdx.x * blockDim.x + threadIdx.x; j < d; j += gridDim.x * blockDim.x)
      if (!isfinite(X[stride * i + j])) atomicMin(first, i64(i));
}
