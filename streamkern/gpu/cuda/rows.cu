// Rows of a step: gathered, scaled, and with Gaussian noise.

#ifndef STORED
#define STORED float
#endif

// Two normals of two words, as rng.normal_rows defines them. The angle is a number of quarter turns and at most an eighth
// of a turn, which float32 holds exactly before it is multiplied.
__device__ __forceinline__ void box_muller(u32 x, u32 y, float& first, float& second) {
  float radius = sqrtf(-2.0f * logf((float(x >> 9) + 0.5f) * 1.1920928955078125e-7f));
  u32 quarter = (y + 0x20000000u) >> 30;
  float r = float(i32(y - (quarter << 30))) * 1.4629180792671596e-9f, z = r * r;
  // Polynomials on an eighth of a turn, to 1e-7: sinf and cosf have a branch for large angles, with a stack.
  float sine = ((-1.9515296e-4f * z + 8.3321609e-3f) * z - 1.6666655e-1f) * z * r + r;
  float cosine = ((2.4433157e-5f * z - 1.3887316e-3f) * z + 4.1666646e-2f) * z * z - 0.5f * z + 1.0f;
  first = radius * (quarter == 0 ? cosine : quarter == 1 ? -sine : quarter == 2 ? -cosine : sine);
  second = radius * (quarter == 0 ? sine : quarter == 1 ? cosine : quarter == 2 ? -sine : -cosine);
}

// A thread makes four neighbouring columns of a row, whose noise comes from one counter. Row i of the output is stored row
// index[i], or i without an index.
extern "C" __global__ void assemble(const STORED* raw, i64 stride, const i64* index, float* out, i32 n, i32 d,
                                    const REAL* scale, const REAL* offset, const i64* ids, const i64* copies, u32 k0,
                                    u32 k1, float sigma, i32 noisy) {
  i32 groups = (d + 3) / 4;
  for (i32 i = blockIdx.y * blockDim.y + threadIdx.y; i < n; i += gridDim.y * blockDim.y) {
    const STORED* from = raw + stride * (index ? index[i] : i64(i));
    float* to = out + i64(d) * i;
    for (i32 group = blockIdx.x * blockDim.x + threadIdx.x; group < groups; group += gridDim.x * blockDim.x) {
      float noise[4] = {0, 0, 0, 0};
      if (noisy) {
        u64 id = u64(ids[i]);
        u32 c0 = u32(group), c1 = u32(id), c2 = u32(id >> 32), c3 = u32(u64(copies[i]));
        philox(c0, c1, c2, c3, k0, k1);
        box_muller(c0, c1, noise[0], noise[1]);
        box_muller(c2, c3, noise[2], noise[3]);
      }
      for (i32 k = 0; k < 4; k++) {
        i32 j = 4 * group + k;
        if (j < d) {
          float x = float(REAL(from[j]) * scale[j] + offset[j]);
          to[j] = noisy ? x + sigma * noise[k] : x;
        }
      }
    }
  }
}
