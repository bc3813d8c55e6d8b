// A step of the iteration with momentum: see Momentum in solvers/shared_centers.py. The move is rate × g.
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
