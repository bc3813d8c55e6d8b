// A step of the iteration, and the residual of rows with many outputs.

// F − y in place of F, times the row's weight if there is one, a warp for each row; losses[i] is w ‖F − y‖². Targets are
// codes of classes, or values.
extern "C" __global__ void residual(REAL* F, i32 n, i32 c, const i64* codes, const double* targets,
                                    const double* weights, double* losses) {
  i32 lane = threadIdx.x % 32, warps = blockDim.x / 32;
  for (i32 i = blockIdx.x * warps + threadIdx.x / 32; i < n; i += gridDim.x * warps) {
    double squares = 0, w = weights ? weights[i] : 1.0;
    for (i32 o = lane; o < c; o += 32) {
      REAL f = F[i64(c) * i + o] - (codes ? REAL(codes[i] == o) : REAL(targets[i64(c) * i + o]));
      squares += double(f) * f;
      F[i64(c) * i + o] = weights ? REAL(w) * f : f;
    }
    squares = warp_sum(squares);
    if (lane == 0) losses[i] = w * squares;
  }
}

// A step of the iteration with momentum: see Momentum in solvers/eigenpro.py. The move is rate × g.
extern "C" __global__ void moved(const REAL* ahead, const REAL* before, const double* mean, const REAL* g, i64 size,
                                 REAL rate, REAL gamma, REAL second, double share, REAL* alpha, REAL* next,
                                 double* average) {
  for (i64 e = i64(blockIdx.x) * blockDim.x + threadIdx.x; e < size; e += i64(gridDim.x) * blockDim.x) {
    REAL move = rate * g[e], a = ahead[e] - move;
    alpha[e] = a;
    next[e] = a + gamma * (a - before[e]) + second * move;
    average[e] = mean[e] + share * (double(a) - mean[e]);
  }
}
