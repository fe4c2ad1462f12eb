#include "float16.h"

#include <algorithm>
#include <bit>

#include "processor.h"

namespace stoker {
namespace {

constexpr uint32_t kSign = 0x8000, kExponent = 0x7C00, kFraction = 0x03FF;
// Bits of the fraction that a binary32 has more, and how far its sign is further up.
constexpr int kMore = 13, kUp = 16;
// What to add to an exponent, whose zero is 15 here and 127 there: and to one of all ones, which stays so.
constexpr uint32_t kBias = (127 - 15) << 23, kAllOnes = (255 - 31) << 23;
// Of a fraction whose exponent is zero, in which no one is left out.
constexpr float kSmall = 0x1p-24F;
// Values that stay in the first-level cache.
constexpr size_t kBlock = 1024;

}  // namespace

STOKER_VERSIONS
void widen_float16(std::span<const uint16_t> halves, std::span<float> singles) {
  float small[kBlock];
  for (size_t begin = 0; begin < halves.size(); begin += kBlock) {
    const size_t num = std::min(kBlock, halves.size() - begin);
    const uint16_t* __restrict from = halves.data() + begin;
    float* __restrict to = singles.data() + begin;
    // By an integer: a subnormal float would be zero where the processor is told to flush them. A loop of its own:
    // what may raise a floating-point exception keeps the other from being done side by side.
    for (size_t i = 0; i < num; ++i) small[i] = static_cast<float>(static_cast<int32_t>(from[i] & kFraction)) * kSmall;
    for (size_t i = 0; i < num; ++i) {
      const uint32_t half = from[i], exponent = half & kExponent;
      const uint32_t bias = exponent == kExponent ? kAllOnes : kBias;
      const uint32_t usual = ((half & (kExponent | kFraction)) << kMore) + bias;
      const uint32_t bits = exponent == 0 ? std::bit_cast<uint32_t>(small[i]) : usual;
      to[i] = std::bit_cast<float>(bits | ((half & kSign) << kUp));
    }
  }
}

}  // namespace stoker
