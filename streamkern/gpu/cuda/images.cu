// Augmentations of finished rows that are images, and of rows that are mixed with others: a warp for each row.

// Pixels from elsewhere in their image: moved by up to `padding` lines and columns at random, where pixels from outside are
// `value`; or, with a padding below 0, mirrored left to right with a probability. See data/image_augmentation.py.
extern "C" __global__ void move_pixels(const float* X, float* out, i32 n, i32 height, i32 width, i32 channels,
                                       const i64* ids, const i64* copies, u32 k0, u32 k1, i32 padding, float value,
                                       double probability) {
  i32 lane = threadIdx.x % 32, warps = blockDim.x / 32, d = height * width * channels;
  for (i32 i = blockIdx.x * warps + threadIdx.x / 32; i < n; i += gridDim.x * warps) {
    u64 id = u64(ids[i]);
    u32 c0 = 0x80000000u, c1 = u32(id), c2 = u32(id >> 32), c3 = u32(u64(copies[i]));
    philox(c0, c1, c2, c3, k0, k1);
    i32 places = 2 * padding + 1;
    i32 down = i32(uniform(c0) * places) - padding, right = i32(uniform(c1) * places) - padding;
    bool mirrored = uniform(c0) < probability;
    const float* from = X + i64(d) * i;
    float* to = out + i64(d) * i;
    for (i32 e = lane; e < d; e += 32) {
      i32 channel = e % channels, column = e / channels % width, line = e / channels / width;
      if (padding < 0) {
        to[e] = from[mirrored ? (line * width + width - 1 - column) * channels + channel : e];
      } else {
        i32 y = line + down, x = column + right;
        bool inside = y >= 0 && y < height && x >= 0 && x < width;
        to[e] = inside ? from[(y * width + x) * channels + channel] : value;
      }
    }
  }
}

// share × row + (1 − share) × its partner, in place.
extern "C" __global__ void mix_rows(float* X, const float* bank, i32 n, i32 d, const i64* partner, const double* share) {
  i32 lane = threadIdx.x % 32, warps = blockDim.x / 32;
  for (i32 i = blockIdx.x * warps + threadIdx.x / 32; i < n; i += gridDim.x * warps) {
    float own = float(share[i]), other = float(1.0 - share[i]);
    const float* from = bank + i64(d) * partner[i];
    for (i32 j = lane; j < d; j += 32) X[i64(d) * i + j] = own * X[i64(d) * i + j] + other * from[j];
  }
}
