// What zig's library leaves out: which level of processor this one is. Without, every function of `STOKER_VERSIONS` ran
// as the least processor would have it, in each wheel.
#include "processor.h"

#if defined(STOKER_ZIG) && defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>

namespace {

constexpr bool has(unsigned bits, unsigned all) { return (bits & all) == all; }

// Numbers of bits as LLVM's cpu_model has them.
constexpr unsigned kAvx2 = 1u << 10, kAvx512 = 1u << 15, kLevel2 = 1u << 0, kLevel3 = 1u << 1, kLevel4 = 1u << 2;

}  // namespace

// Called by the loader before anything else is ready, and by `__builtin_cpu_init`.
extern "C" {
[[gnu::visibility("hidden")]] struct {
  unsigned vendor, type, subtype, features[1];
} __cpu_model = {};
[[gnu::visibility("hidden")]] unsigned __cpu_features2[3] = {};

[[gnu::visibility("hidden")]] int __cpu_indicator_init() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0, ecx1 = 0, ebx7 = 0, state = 0;
  __get_cpuid(1, &eax, &ebx, &ecx1, &edx);
  // Registers that the system keeps: 0x06 of 32 bytes, 0xE6 of 64.
  if (has(ecx1, bit_OSXSAVE)) asm volatile("xgetbv" : "=a"(state), "=d"(edx) : "c"(0));
  __get_cpuid_count(7, 0, &eax, &ebx7, &ecx, &edx);
  __get_cpuid(0x80000001, &eax, &ebx, &ecx, &edx);
  __cpu_features2[2] |= kLevel2;
  if (!has(state, 0x06) || !has(ecx1, bit_FMA | bit_MOVBE | bit_AVX | bit_F16C) || !has(ecx, bit_LZCNT) ||
      !has(ebx7, bit_BMI | bit_AVX2 | bit_BMI2))
    return 0;
  __cpu_features2[2] |= kLevel3;
  __cpu_model.features[0] |= kAvx2;
  if (!has(state, 0xE6) || !has(ebx7, bit_AVX512F | bit_AVX512DQ | bit_AVX512CD | bit_AVX512BW | bit_AVX512VL)) return 0;
  __cpu_features2[2] |= kLevel4;
  __cpu_model.features[0] |= kAvx512;
  return 0;
}
}
#endif
