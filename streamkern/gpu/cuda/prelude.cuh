// Names that every file of these loops uses. REAL is float or double; the caller defines it.
//
// Constants are written as REAL(...), because a literal of double would turn the arithmetic of float into double, for
// which most cards have few units. The tests compile these files for the host too: tests/host_cuda.h has what CUDA has.

typedef unsigned char u8;
typedef signed char i8;
typedef unsigned short u16;
typedef short i16;
typedef unsigned int u32;
typedef int i32;
typedef unsigned long long u64;
typedef long long i64;

#ifndef REAL
#define REAL float
#endif

#ifndef HOST_CUDA
__device__ __forceinline__ float square_root(float x) {
  float y;
  asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ u16 half_of(float x) {
  u16 y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float from_half(u16 x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
  return y;
}
#endif
__device__ __forceinline__ double square_root(double x) { return sqrt(x); }
__device__ __forceinline__ double power_of_two(double x) { return exp2(x); }
__device__ __forceinline__ double reciprocal(double x) { return 1.0 / x; }

#define LOG2E REAL(1.4426950408889634074)

// The sum over the 32 threads of a warp, in the same order in each of them.
template <typename T>
__device__ __forceinline__ T warp_sum(T value) {
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
  return value;
}
