// Products of kernel values with few columns. Values come from inner products as these are read, and are never stored:
// K W, with the residual of its rows, and Kᵀ r.

#ifndef OUTPUTS
#define OUTPUTS 1
#endif
#ifndef TRIANGLE
#define TRIANGLE 0
#endif
#ifndef RESIDUAL
#define RESIDUAL 0
#endif
#ifndef ROWS
#define ROWS 2
#endif

#define WARPS 8
#define COLUMNS 128
#define PADDED ((OUTPUTS + 3) / 4 * 4)

// F = K(S) W, a warp for ROWS rows. TRIANGLE: rows up to p have that many columns at most, later rows the first `tail`, and
// their results change sign. RESIDUAL: 1 for codes of classes, 2 for values: F − y, times the row's weight if there is one,
// takes the place of F, and losses[block] is Σ w ‖F − y‖² of the block's rows.
extern "C" __global__ void __launch_bounds__(256, 2) outputs(const REAL* S, i64 stride, i32 n, i32 p, const REAL* x_norms, const REAL* z_norms,
                                   const REAL* x_factors, const REAL* z_factors, REAL a, REAL b, REAL c, REAL floor, const REAL* W, REAL* F,
                                   i32 tail, const i64* codes, const double* targets, const double* weights,
                                   double* losses) {
  const Profile kernel = {a, b, c, floor};
  __shared__ REAL held[OUTPUTS][COLUMNS];
#if RESIDUAL
  __shared__ double lost[WARPS];
#endif
  i32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#if TRIANGLE
  i32 block = gridDim.x - 1 - blockIdx.x;  // the longest first
#else
  i32 block = blockIdx.x;
#endif
  i32 first = (block * WARPS + warp) * ROWS, stop = p;
#if TRIANGLE
  i32 last = (block + 1) * WARPS * ROWS;
  stop = last > p ? p : last;
  if (block * WARPS * ROWS >= p) stop = tail;
#endif
  Side x[ROWS];
  REAL sums[ROWS][OUTPUTS];
  for (i32 r = 0; r < ROWS; r++) {
    x[r] = side(x_norms, x_factors, first + r < n ? first + r : n - 1, REAL(-2));
    for (i32 o = 0; o < OUTPUTS; o++) sums[r][o] = 0;
  }
  for (i32 start = 0; start < stop; start += COLUMNS) {
    __syncthreads();
    for (i32 e = threadIdx.x; e < COLUMNS * OUTPUTS; e += 32 * WARPS) {
      i32 j = e / OUTPUTS, o = e % OUTPUTS;
      held[o][j] = start + j < stop ? W[i64(start + j) * OUTPUTS + o] : REAL(0);
    }
    __syncthreads();
#pragma unroll
    for (i32 k = 0; k < COLUMNS / 32; k++) {
      i32 j = start + 32 * k + lane;
      if (j < stop) {
        Side z = side(z_norms, z_factors, j, REAL(1));
        REAL w[OUTPUTS];
        for (i32 o = 0; o < OUTPUTS; o++) w[o] = held[o][32 * k + lane];
#pragma unroll
        for (i32 r = 0; r < ROWS; r++) {
          if (first + r < n) {
            REAL value = value_of(S[stride * (first + r) + j], x[r], z, kernel);
            for (i32 o = 0; o < OUTPUTS; o++) sums[r][o] += value * w[o];
          }
        }
      }
    }
  }
#if RESIDUAL
  double loss = 0;
#endif
#pragma unroll
  for (i32 r = 0; r < ROWS; r++) {
    i32 i = first + r;
#if RESIDUAL
    double squares = 0;
#endif
    for (i32 o = 0; o < OUTPUTS; o++) {
      REAL f = warp_sum(sums[r][o]);
#if TRIANGLE
      if (i >= p) f = -f;
#endif
      if (i < n) {
#if RESIDUAL
        REAL y = RESIDUAL == 1 ? REAL(codes[i] == o) : REAL(targets[i64(i) * OUTPUTS + o]);
        f -= y;
        squares += double(f) * f;
        if (weights) f *= REAL(weights[i]);
#endif
        if (lane == 0) F[i64(i) * OUTPUTS + o] = f;
      }
    }
#if RESIDUAL
    if (i < n) loss += weights ? weights[i] * squares : squares;
#endif
  }
#if RESIDUAL
  if (lane == 0) lost[warp] = loss;
  __syncthreads();
  if (threadIdx.x == 0) {
    loss = 0;
    for (i32 w = 0; w < WARPS; w++) loss += lost[w];
    losses[block] = loss;
  }
#endif
}

// g = K(S)ᵀ R, added to what g holds where `more` is set. A block has 64 columns, two for each thread of a warp, and some of
// the rows; the last block of a column adds up what all have found, in their order. TRIANGLE as for outputs.
extern "C" __global__ void __launch_bounds__(256) pulled(const REAL* S, i64 stride, i32 n, i32 p, const REAL* x_norms, const REAL* z_norms,
                                  const REAL* x_factors, const REAL* z_factors, REAL a, REAL b, REAL c, REAL floor, const REAL* R, REAL* g,
                                  i32 share, i32 more, REAL* parts, u32* arrived) {
  const Profile kernel = {a, b, c, floor};
  __shared__ __align__(16) REAL r[WARPS * 8][PADDED];
  __shared__ Side x[WARPS * 8];
  __shared__ REAL found[64][OUTPUTS];
  __shared__ bool last;
  i32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, column = blockIdx.x * 64 + lane;
  i32 begin = blockIdx.y * share, stop = begin + share < n ? begin + share : n;
#if TRIANGLE
  if (begin < i32(blockIdx.x) * 64 && begin < p) begin = blockIdx.x * 64;  // nothing is above the diagonal
#endif
  Side z[2];
  REAL sums[2][OUTPUTS];
  for (i32 u = 0; u < 2; u++) {
    z[u] = side(z_norms, z_factors, column + 32 * u < p ? column + 32 * u : p - 1, REAL(1));
    for (i32 o = 0; o < OUTPUTS; o++) sums[u][o] = 0;
  }
  for (i32 start = begin; start < stop; start += WARPS * 8) {
    __syncthreads();
    for (i32 e = threadIdx.x; e < WARPS * 8 * OUTPUTS; e += 32 * WARPS)
      r[e / OUTPUTS][e % OUTPUTS] = start + e / OUTPUTS < stop ? R[i64(start) * OUTPUTS + e] : REAL(0);
    if (threadIdx.x < WARPS * 8 && start + i32(threadIdx.x) < stop)
      x[threadIdx.x] = side(x_norms, x_factors, start + threadIdx.x, REAL(-2));
    __syncthreads();
    REAL s[2][8];
#pragma unroll
    for (i32 k = 0; k < 8; k++) {
      i32 i = start + WARPS * k + warp;
#pragma unroll
      for (i32 u = 0; u < 2; u++)
        s[u][k] = i < stop && column + 32 * u < p ? S[stride * i + column + 32 * u] : REAL(0);
    }
#pragma unroll
    for (i32 k = 0; k < 8; k++) {
      i32 i = WARPS * k + warp;
      if (start + i < stop) {
#pragma unroll
        for (i32 u = 0; u < 2; u++) {
          REAL value = value_of(s[u][k], x[i], z[u], kernel);
          for (i32 o = 0; o < OUTPUTS; o++) sums[u][o] += value * r[i][o];
        }
      }
    }
  }
  for (i32 turn = 0; turn < WARPS; turn++) {
    if (warp == turn)
      for (i32 u = 0; u < 2; u++)
        for (i32 o = 0; o < OUTPUTS; o++) {
          REAL& total = found[lane + 32 * u][o];
          total = turn ? total + sums[u][o] : sums[u][o];
        }
    __syncthreads();
  }
  i64 size = i64(p) * OUTPUTS, at = i64(blockIdx.x) * 64 * OUTPUTS;
  for (i32 e = threadIdx.x; e < 64 * OUTPUTS && at + e < size; e += 32 * WARPS)
    parts[size * blockIdx.y + at + e] = found[e / OUTPUTS][e % OUTPUTS];
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) last = atomicAdd(arrived + blockIdx.x, 1u) == gridDim.y - 1;
  __syncthreads();
  if (!last) return;
  __threadfence();
  for (i32 e = threadIdx.x; e < 64 * OUTPUTS && at + e < size; e += 32 * WARPS) {
    REAL total = more ? g[at + e] : REAL(0);
    for (i32 part = 0; part < i32(gridDim.y); part++) total += ((volatile REAL*)parts)[size * part + at + e];
    g[at + e] = total;
  }
  if (threadIdx.x == 0) arrived[blockIdx.x] = 0;  // for the next launch
}
