// Products of kernel values with few columns. Values come from inner products as these are read, and are never stored:
// K W, with the residual of its rows, and Kᵀ r.
//
// A tile of W, or of r, is in shared memory. The inner products of the next tile are read as this one's are used, and what
// a value is multiplied with is read from shared memory one value ahead.
// Rows and columns beyond the last are read from the last, and meet zeros.

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
#define THREADS (32 * WARPS)
#define TILE (sizeof(REAL) == 4 ? i32(128) : i32(64))  // columns of a tile of ``outputs``
#define HEIGHT (OUTPUTS <= 12 ? 64 : 32)              // rows of a tile of ``pulled``
// Numbers between two rows of a tile: an odd number of four, so that threads read four at a time from all banks.
#define PADDED (((OUTPUTS + 3) / 4 | 1) * 4)

__device__ __forceinline__ i32 least(i32 a, i32 b) { return a < b ? a : b; }

// Rows start to start + SIZE of a matrix of OUTPUTS columns into shared memory; zeros from row stop on.
template <i32 SIZE>
__device__ __forceinline__ void stage(REAL (*tile)[PADDED], const REAL* from, i32 start, i32 stop) {
  for (i32 e = threadIdx.x; e < SIZE * OUTPUTS; e += THREADS) {
    i32 j = e / OUTPUTS, o = e % OUTPUTS;
    tile[j][o] = start + j < stop ? from[i64(start) * OUTPUTS + e] : REAL(0);
  }
}

// F = K(S) W, a warp for ROWS rows. TRIANGLE: rows up to p have that many columns at most, later rows the first `tail`, and
// their results change sign. RESIDUAL: 1 for codes of classes, 2 for values: F − y, times the row's weight if there is one,
// takes the place of F, and losses[block] is Σ w ‖F − y‖² of the block's rows.
extern "C" __global__ void __launch_bounds__(THREADS, sizeof(REAL) == 4 ? 2 : 1)
    outputs(const REAL* S, i64 stride, i32 n, i32 p, const REAL* x_norms, const REAL* z_norms, const REAL* x_factors,
            const REAL* z_factors, REAL a, REAL b, REAL c, const REAL* W, REAL* F, i32 tail, const i64* codes,
            const double* targets, const double* weights, double* losses) {
  __shared__ __align__(16) REAL w[2][TILE][PADDED];
  __shared__ Side z[2][TILE];
#if RESIDUAL
  __shared__ double lost[WARPS];
#endif
  const Profile kernel = prepared(a, b, c);
  i32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#if TRIANGLE
  i32 block = gridDim.x - 1 - blockIdx.x;  // the longest first
#else
  i32 block = blockIdx.x;
#endif
  i32 first = (block * WARPS + warp) * ROWS, stop = p;
#if TRIANGLE
  stop = block * WARPS * ROWS >= p ? tail : least(p, (block + 1) * WARPS * ROWS);
#endif
  Side x[ROWS];
  const REAL* row[ROWS];
  REAL sums[ROWS][OUTPUTS], s[ROWS][TILE / 32];
#pragma unroll
  for (i32 r = 0; r < ROWS; r++) {
    i32 i = least(first + r, n - 1);
    x[r] = row_side(x_norms, x_factors, i, kernel);
    row[r] = S + stride * i + lane;
    for (i32 o = 0; o < OUTPUTS; o++) sums[r][o] = 0;
#pragma unroll
    for (i32 k = 0; k < TILE / 32; k++) s[r][k] = row[r][least(32 * k, stop - 1 - lane)];
  }
  stage<TILE>(w[0], W, 0, stop);
  if (KIND != VALUES && threadIdx.x < TILE)
    z[0][threadIdx.x] = center_side(z_norms, z_factors, least(threadIdx.x, stop - 1), kernel);
  for (i32 start = 0, turn = 0; start < stop; start += TILE, turn ^= 1) {
    __syncthreads();
    if (start + TILE < stop) {
      stage<TILE>(w[turn ^ 1], W, start + TILE, stop);
      if (KIND != VALUES && threadIdx.x < TILE)
        z[turn ^ 1][threadIdx.x] =
            center_side(z_norms, z_factors, least(start + TILE + threadIdx.x, stop - 1), kernel);
    }
    const i32 left = stop - 1 - lane - start - TILE;  // columns of the next tile from this thread's first on
    REAL of_column[2][OUTPUTS];
    Side at[2];
#pragma unroll
    for (i32 o = 0; o < OUTPUTS; o++) of_column[0][o] = w[turn][lane][o];
    at[0] = z[turn][lane];
#pragma unroll
    for (i32 k = 0; k < TILE / 32; k++) {
      const i32 now = k % 2, then = (k + 1) % 2;
      if (k + 1 < TILE / 32) {
#pragma unroll
        for (i32 o = 0; o < OUTPUTS; o++) of_column[then][o] = w[turn][32 * (k + 1) + lane][o];
        at[then] = z[turn][32 * (k + 1) + lane];
      }
      const i32 ahead = start + TILE + least(32 * k, left);
#pragma unroll
      for (i32 r = 0; r < ROWS; r++) {
        REAL value = value_of(s[r][k], x[r], at[now], kernel);
        s[r][k] = row[r][ahead];
#pragma unroll
        for (i32 o = 0; o < OUTPUTS; o++) sums[r][o] += value * of_column[now][o];
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
#pragma unroll
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
extern "C" __global__ void __launch_bounds__(THREADS, sizeof(REAL) == 4 ? 2 : 1)
    pulled(const REAL* S, i64 stride, i32 n, i32 p, const REAL* x_norms, const REAL* z_norms, const REAL* x_factors,
           const REAL* z_factors, REAL a, REAL b, REAL c, const REAL* R, REAL* g, i32 share, i32 more, REAL* parts,
           u32* arrived) {
  __shared__ __align__(16) REAL r[2][HEIGHT][PADDED];
  __shared__ Side x[2][HEIGHT];
  __shared__ REAL found[64][OUTPUTS];
  __shared__ bool last;
  const Profile kernel = prepared(a, b, c);
  i32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  i32 begin = blockIdx.y * share, stop = least(n, begin + share);
#if TRIANGLE
  if (begin < i32(blockIdx.x) * 64 && begin < p) begin = blockIdx.x * 64;  // nothing is above the diagonal
#endif
  Side z[2];
  const REAL* at[2];
  REAL sums[2][OUTPUTS], s[2][HEIGHT / WARPS];
#pragma unroll
  for (i32 u = 0; u < 2; u++) {
    i32 j = least(blockIdx.x * 64 + lane + 32 * u, p - 1);
    z[u] = center_side(z_norms, z_factors, j, kernel);
    at[u] = S + j;
    for (i32 o = 0; o < OUTPUTS; o++) sums[u][o] = 0;
  }
  if (begin < stop) {
    stage<HEIGHT>(r[0], R, begin, stop);
    if (KIND != VALUES && threadIdx.x < HEIGHT)
      x[0][threadIdx.x] = row_side(x_norms, x_factors, least(begin + threadIdx.x, stop - 1), kernel);
#pragma unroll
    for (i32 k = 0; k < HEIGHT / WARPS; k++)
#pragma unroll
      for (i32 u = 0; u < 2; u++) s[u][k] = at[u][stride * least(begin + WARPS * k + warp, stop - 1)];
  }
  for (i32 start = begin, turn = 0; start < stop; start += HEIGHT, turn ^= 1) {
    __syncthreads();
    if (start + HEIGHT < stop) {
      stage<HEIGHT>(r[turn ^ 1], R, start + HEIGHT, stop);
      if (KIND != VALUES && threadIdx.x < HEIGHT)
        x[turn ^ 1][threadIdx.x] =
            row_side(x_norms, x_factors, least(start + HEIGHT + threadIdx.x, stop - 1), kernel);
    }
    REAL of_row[2][OUTPUTS];
    Side of[2];
#pragma unroll
    for (i32 o = 0; o < OUTPUTS; o++) of_row[0][o] = r[turn][warp][o];
    of[0] = x[turn][warp];
#pragma unroll
    for (i32 k = 0; k < HEIGHT / WARPS; k++) {
      const i32 now = k % 2, then = (k + 1) % 2;
      if (k + 1 < HEIGHT / WARPS) {
#pragma unroll
        for (i32 o = 0; o < OUTPUTS; o++) of_row[then][o] = r[turn][WARPS * (k + 1) + warp][o];
        of[then] = x[turn][WARPS * (k + 1) + warp];
      }
      const i64 ahead = stride * least(start + HEIGHT + WARPS * k + warp, stop - 1);
#pragma unroll
      for (i32 u = 0; u < 2; u++) {
        REAL value = value_of(s[u][k], of[now], z[u], kernel);
        s[u][k] = at[u][ahead];
#pragma unroll
        for (i32 o = 0; o < OUTPUTS; o++) sums[u][o] += value * of_row[now][o];
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
  i64 size = i64(p) * OUTPUTS, from = i64(blockIdx.x) * 64 * OUTPUTS;
  for (i32 e = threadIdx.x; e < 64 * OUTPUTS && from + e < size; e += THREADS)
    parts[size * blockIdx.y + from + e] = found[e / OUTPUTS][e % OUTPUTS];
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) last = atomicAdd(arrived + blockIdx.x, 1u) == gridDim.y - 1;
  __syncthreads();
  if (!last) return;
  __threadfence();
  for (i32 e = threadIdx.x; e < 64 * OUTPUTS && from + e < size; e += THREADS) {
    REAL total = more ? g[from + e] : REAL(0);
    for (i32 part = 0; part < i32(gridDim.y); part++) total += ((volatile REAL*)parts)[size * part + from + e];
    g[from + e] = total;
  }
  if (threadIdx.x == 0) arrived[blockIdx.x] = 0;  // for the next launch
}
