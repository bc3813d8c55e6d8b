// The random numbers of rows: see rng.py.

#define PHILOX_ROUNDS 10

__device__ __forceinline__ void philox(u32& c0, u32& c1, u32& c2, u32& c3, u32 k0, u32 k1) {
  for (int round = 0; round < PHILOX_ROUNDS; round++) {
    u64 p0 = u64(0xD2511F53u) * c0, p1 = u64(0xCD9E8D57u) * c2;
    c0 = u32(p1 >> 32) ^ c1 ^ k0;
    c1 = u32(p1);
    c2 = u32(p0 >> 32) ^ c3 ^ k1;
    c3 = u32(p0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
}

// A uniform number of a word, as rng.uniform_rows defines it.
__device__ __forceinline__ double uniform(u32 x) { return (double(x) + 0.5) * 2.3283064365386963e-10; }
