#include "hash.h"

#include "bytes.h"

namespace stoker {
namespace {

constexpr uint64_t kPrime1 = 0x9E3779B185EBCA87, kPrime2 = 0xC2B2AE3D27D4EB4F, kPrime3 = 0x165667B19E3779F9,
                   kPrime4 = 0x85EBCA77C2B2AE63, kPrime5 = 0x27D4EB2F165667C5;
constexpr uint64_t kShortPrime1 = 0x9E3779B1, kShortPrime2 = 0x85EBCA77, kShortPrime3 = 0xC2B2AE3D;
constexpr uint64_t kMixPrime1 = 0x165667919E3779F9, kMixPrime2 = 0x9FB21C651E98DF25;

constexpr size_t kSecretBytes = 192;
constexpr uint8_t kSecret[kSecretBytes] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c, 0xde, 0xd4, 0x6d,
    0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f, 0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0,
    0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21, 0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0,
    0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c, 0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b,
    0x1b, 0x53, 0x2e, 0xa3, 0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac,
    0xd8, 0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d, 0x8a, 0x51,
    0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64, 0xea, 0xc5, 0xac, 0x83, 0x34,
    0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb, 0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49,
    0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e, 0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8,
    0xd1, 0x7a, 0xd0, 0x31, 0xce, 0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b,
    0x40, 0x7e,
};

STOKER_INLINE uint64_t read(const uint8_t* at) { return load<uint64_t>(at); }
STOKER_INLINE uint64_t secret(size_t at) { return load<uint64_t>(kSecret + at); }

// Returns the two halves of a product of 128 bits, one over the other.
STOKER_INLINE uint64_t folded(uint64_t a, uint64_t b) {
  const unsigned __int128 product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

STOKER_INLINE uint64_t avalanche(uint64_t value) {
  value = (value ^ (value >> 37)) * kMixPrime1;
  return value ^ (value >> 32);
}

STOKER_INLINE uint64_t avalanche_short(uint64_t value) {
  value = (value ^ (value >> 33)) * kPrime2;
  value = (value ^ (value >> 29)) * kPrime3;
  return value ^ (value >> 32);
}

STOKER_INLINE uint64_t mixed(const uint8_t* at, size_t from) {
  return folded(read(at) ^ secret(from), read(at + 8) ^ secret(from + 8));
}

STOKER_INLINE void accumulate(uint64_t (&sums)[8], const uint8_t* stripe, size_t from) {
  for (size_t i = 0; i < 8; ++i) {
    const uint64_t value = read(stripe + 8 * i), keyed = value ^ secret(from + 8 * i);
    sums[i ^ 1] += value;
    sums[i] += (keyed & 0xFFFFFFFF) * (keyed >> 32);
  }
}

// Of more than 240 bytes: stripes of 64 bytes, in blocks of 16.
uint64_t hash_long(const uint8_t* at, size_t num) {
  constexpr size_t kStripe = 64, kStripes = (kSecretBytes - kStripe) / 8, kBlock = kStripe * kStripes;
  uint64_t sums[8] = {kShortPrime3, kPrime1, kPrime2, kPrime3, kPrime4, kShortPrime2, kPrime5, kShortPrime1};
  const size_t num_blocks = (num - 1) / kBlock;
  for (size_t block = 0; block < num_blocks; ++block) {
    for (size_t n = 0; n < kStripes; ++n) accumulate(sums, at + block * kBlock + n * kStripe, 8 * n);
    for (size_t i = 0; i < 8; ++i)
      sums[i] = (sums[i] ^ (sums[i] >> 47) ^ secret(kSecretBytes - kStripe + 8 * i)) * kShortPrime1;
  }
  const uint8_t* rest = at + num_blocks * kBlock;
  const size_t num_stripes = (num - 1 - num_blocks * kBlock) / kStripe;
  for (size_t n = 0; n < num_stripes; ++n) accumulate(sums, rest + n * kStripe, 8 * n);
  accumulate(sums, at + num - kStripe, kSecretBytes - kStripe - 7);
  uint64_t total = num * kPrime1;
  for (size_t i = 0; i < 4; ++i)
    total += folded(sums[2 * i] ^ secret(11 + 16 * i), sums[2 * i + 1] ^ secret(19 + 16 * i));
  return avalanche(total);
}

STOKER_INLINE uint64_t hash_at(const uint8_t* at, size_t num) {
  if (num > 240) return hash_long(at, num);
  if (num <= 16) {
    if (num > 8) {
      const uint64_t low = read(at) ^ secret(24) ^ secret(32), high = read(at + num - 8) ^ secret(40) ^ secret(48);
      return avalanche(num + __builtin_bswap64(low) + high + folded(low, high));
    }
    if (num >= 4) {
      uint64_t value = load<uint32_t>(at + num - 4) + (uint64_t{load<uint32_t>(at)} << 32);
      value ^= secret(8) ^ secret(16);
      value ^= ((value << 49) | (value >> 15)) ^ ((value << 24) | (value >> 40));
      value *= kMixPrime2;
      value ^= (value >> 35) + num;
      value *= kMixPrime2;
      return value ^ (value >> 28);
    }
    if (num == 0) return avalanche_short(secret(56) ^ secret(64));
    const uint64_t joined = uint64_t{at[0]} << 16 | uint64_t{at[num >> 1]} << 24 | at[num - 1] | num << 8;
    return avalanche_short(joined ^ load<uint32_t>(kSecret) ^ load<uint32_t>(kSecret + 4));
  }
  uint64_t total = num * kPrime1;
  if (num <= 128) {
    // From both ends to the middle, 16 bytes each.
    for (size_t i = (num - 1) / 32 + 1; i-- > 0;)
      total += mixed(at + 16 * i, 32 * i) + mixed(at + num - 16 * (i + 1), 32 * i + 16);
    return avalanche(total);
  }
  for (size_t i = 0; i < 8; ++i) total += mixed(at + 16 * i, 16 * i);
  total = avalanche(total);
  for (size_t i = 8; i < num / 16; ++i) total += mixed(at + 16 * i, 16 * (i - 8) + 3);
  return avalanche(total + mixed(at + num - 16, 119));
}

}  // namespace

STOKER_VERSIONS
bool hash_strings(std::span<const uint8_t> data, std::span<const int64_t> offsets, uint64_t num_buckets,
                  std::span<int64_t> out) {
  const int64_t size = static_cast<int64_t>(data.size());
  for (size_t i = 0; i < out.size(); ++i) {
    const int64_t begin = offsets[i], end = offsets[i + 1];
    if (begin < 0 || begin > end || end > size) return false;
    const uint64_t found = hash_at(data.data() + begin, static_cast<size_t>(end - begin));
    out[i] = static_cast<int64_t>(found % num_buckets);
  }
  return true;
}

}  // namespace stoker
