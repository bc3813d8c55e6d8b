// What CUDA has and a compiler for the host does not: threads of a block as coroutines that take turns at barriers.
//
// Blocks run one after another, so that __shared__ memory is static. A barrier that some threads of a block never reach
// ends the program with a message, and so does a warp's exchange between threads that are at different places.

#undef _FORTIFY_SOURCE  // whose longjmp takes a jump to another stack for an error

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#define HOST_CUDA 1
#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__ static
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)
#define volatile

using std::acos; using std::cos; using std::exp2; using std::fabs; using std::floor; using std::isfinite; using std::pow; using std::sqrt;

struct Dim { unsigned x, y, z; };
static Dim threadIdx, blockIdx, blockDim, gridDim;

inline float square_root(float x) { return std::sqrt(x); }
inline float power_of_two(float x) { float y = std::exp2(x); return y < 1.17549435e-38f ? 0.0f : y; }
inline float reciprocal(float x) { return 1.0f / x; }
inline unsigned short half_of(float x) { _Float16 h = (_Float16)x; unsigned short b; std::memcpy(&b, &h, 2); return b; }
inline float from_half(unsigned short b) { _Float16 h; std::memcpy(&h, &b, 2); return (float)h; }
inline float cospi(float x) { return (float)std::cos(M_PI * (double)x); }
inline double cospi(double x) { return std::cos(M_PI * x); }
inline void __threadfence() {}
template <typename T> T atomicMin(T* at, T value) { T old = *at; if (value < old) *at = value; return old; }
template <typename T> T atomicAdd(T* at, T value) { T old = *at; *at += value; return old; }

enum State { RUNNING, AT_BLOCK, AT_WARP, DONE };

struct Fiber { ucontext_t context; jmp_buf place; State state; Dim index; bool begun; };

static std::vector<Fiber> fibers;
static std::vector<std::vector<char>> stacks;
static jmp_buf scheduler;
static size_t current;
static double slots[1024];
static void (*body)(void**);
static void** arguments;

static void enter() {
  body(arguments);
  fibers[current].state = DONE;
  _longjmp(scheduler, 1);
}

// A thread goes on, until it waits or ends. Jumps take a hundredth of the time of swapcontext, which calls the system.
static __attribute__((noinline)) void go_on(Fiber& fiber) {
  if (_setjmp(scheduler)) return;
  if (fiber.begun) _longjmp(fiber.place, 1);
  fiber.begun = true;
  setcontext(&fiber.context);
}

static __attribute__((noinline)) void wait_as(State state) {
  Fiber& fiber = fibers[current];
  fiber.state = state;
  if (!_setjmp(fiber.place)) _longjmp(scheduler, 1);
}

inline void __syncthreads() { wait_as(AT_BLOCK); }

template <typename T> T __shfl_xor_sync(unsigned, T value, int mask) {
  size_t me = current;
  std::memcpy(&slots[me], &value, sizeof(T));
  wait_as(AT_WARP);
  std::memcpy(&value, &slots[me ^ mask], sizeof(T));
  wait_as(AT_WARP);
  return value;
}

static void stop(const char* why) { std::fprintf(stderr, "host_cuda: %s\n", why); std::abort(); }

static void run_block() {
  size_t n = fibers.size();
  for (size_t t = 0; t < n; t++) {
    Fiber& fiber = fibers[t];
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = stacks[t].data();
    fiber.context.uc_stack.ss_size = stacks[t].size();
    fiber.context.uc_link = nullptr;
    fiber.state = RUNNING;
    fiber.begun = false;
    fiber.index = {unsigned(t % blockDim.x), unsigned(t / blockDim.x), 0};
    makecontext(&fiber.context, enter, 0);
  }
  while (true) {
    for (size_t t = 0; t < n; t++)
      if (fibers[t].state == RUNNING) {
        current = t;
        threadIdx = fibers[t].index;
        go_on(fibers[t]);
      }
    bool moved = false;
    for (size_t w = 0; w < n; w += 32) {  // a warp goes on when all of it waits for the same
      size_t end = std::min(n, w + 32), waiting = 0, ended = 0;
      for (size_t t = w; t < end; t++) waiting += fibers[t].state == AT_WARP, ended += fibers[t].state == DONE;
      if (waiting == 0) continue;
      if (waiting + ended != end - w) continue;
      if (ended) stop("threads of a warp ended before an exchange");
      for (size_t t = w; t < end; t++) fibers[t].state = RUNNING;
      moved = true;
    }
    if (moved) continue;
    size_t waiting = 0, ended = 0;
    for (size_t t = 0; t < n; t++) waiting += fibers[t].state == AT_BLOCK, ended += fibers[t].state == DONE;
    if (ended == n) return;
    if (waiting + ended != n) stop("a warp waits for threads that are at a barrier of the block");
    if (ended) stop("threads of a block ended before a barrier");
    for (size_t t = 0; t < n; t++) fibers[t].state = RUNNING;
  }
}

static void launch(void (*kernel)(void**), const unsigned* grid, const unsigned* block, void** args) {
  body = kernel;
  arguments = args;
  gridDim = {grid[0], grid[1], 1};
  blockDim = {block[0], block[1], 1};
  size_t n = size_t(block[0]) * block[1];
  fibers.resize(n);
  while (stacks.size() < n) stacks.emplace_back(1 << 16);
  for (unsigned y = 0; y < grid[1]; y++)
    for (unsigned x = 0; x < grid[0]; x++) {
      blockIdx = {x, y, 0};
      run_block();
    }
}
