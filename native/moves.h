// What gathering and packing are made of: asking ahead, copies by vector registers, and writing past the caches.
//
// docs/decisions/0007 and 0011 say why. Everything here is compiled into its caller, and so for the
// level of the processor that the caller is compiled for.
#pragma once

#include <cstddef>
#include <cstdint>

#include "processor.h"

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace stoker {

constexpr size_t kLineBytes = 64;

// From this many bytes on, what is written goes past the caches: it would push out rows that were asked for, and be
// pushed out itself before anybody reads it.
constexpr size_t kStreamedBytes = size_t{1} << 20;

// Of a long row only the beginning is asked for: behind it the processor sees by itself where this leads.
constexpr size_t kMaxAskedBytes = size_t{2} << 10;

STOKER_INLINE bool is_aligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % kLineBytes == 0; }

// Asks for a cache line without waiting for it: into L1 where `kNearest`, else into L2. A core waits for more lines at a
// time in L2: records of 640 bytes, two threads of an EPYC (Zen 4), take 57 nanoseconds by L2 and 86 by L1. Not so on
// Zen 5: 0.80 of memcpy by L1, 0.71 by L2.
template <bool kNearest = false>
STOKER_INLINE void prefetch(const void* pointer) {
  __builtin_prefetch(pointer, 0, kNearest ? 3 : 2);
}

template <bool kNearest>
STOKER_INLINE void prefetch_lines(const uint8_t* line, const uint8_t* end) {
#pragma GCC unroll 8
  for (; line < end; line += kLineBytes) prefetch<kNearest>(line);
}

// Asks for the lines of a row, or of the beginning of a long one.
STOKER_INLINE void prefetch_row(const uint8_t* row, size_t num_bytes, bool nearest = false) {
  const uint8_t* end = row + (num_bytes < kMaxAskedBytes ? num_bytes : kMaxAskedBytes);
  row -= reinterpret_cast<uintptr_t>(row) % kLineBytes;
  nearest ? prefetch_lines<true>(row, end) : prefetch_lines<false>(row, end);
}

template <size_t kBytes>
STOKER_INLINE void copy(uint8_t* out, const uint8_t* in) {
  __builtin_memcpy(out, in, kBytes);
}

STOKER_INLINE void copy_lines(uint8_t* out, const uint8_t* in, size_t num_lines) {
  for (size_t i = 0; i < num_lines * kLineBytes; i += kLineBytes) copy<kLineBytes>(out + i, in + i);
}

#if defined(__x86_64__)
// Bytes that one register of this processor holds.
inline const int kRegisterBytes = [] {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx512f") ? 64 : __builtin_cpu_supports("avx2") ? 32 : 16;
}();

// Moves what a register holds past the caches, from `in` (%0) to `out` (%1).
#define STOKER_STREAM(at, reg) "vmovups " #at "(%0), %%" #reg "\n\tvmovntps %%" #reg ", " #at "(%1)\n\t"
#endif

// Copies whole lines past the caches; `out` begins on a line. Nobody may rely on them before `fence`.
//
// Eight moves of the widest registers at a time: records of 640 bytes, two threads of an EPYC (Zen 4), take 60
// nanoseconds so, 83 one move at a time, and 115 by 16 bytes each. In assembly, since no compiler offers the wide moves
// to code that is compiled for several levels at once.
STOKER_INLINE void stream_lines(uint8_t* out, const uint8_t* in, size_t num_lines) {
#if defined(__x86_64__)
  const uint8_t* end = in + num_lines * kLineBytes;
  if (kRegisterBytes == 64) {
    for (; end - in >= 512; in += 512, out += 512) {
      asm volatile(STOKER_STREAM(0, zmm0) STOKER_STREAM(64, zmm0) STOKER_STREAM(128, zmm0) STOKER_STREAM(192, zmm0)
                       STOKER_STREAM(256, zmm0) STOKER_STREAM(320, zmm0) STOKER_STREAM(384, zmm0) STOKER_STREAM(448, zmm0)
                   : : "r"(in), "r"(out) : "xmm0", "memory");
    }
    for (; in != end; in += 64, out += 64) {
      asm volatile(STOKER_STREAM(0, zmm0) : : "r"(in), "r"(out) : "xmm0", "memory");
    }
  } else if (kRegisterBytes == 32) {
    for (; end - in >= 256; in += 256, out += 256) {
      asm volatile(STOKER_STREAM(0, ymm0) STOKER_STREAM(32, ymm0) STOKER_STREAM(64, ymm0) STOKER_STREAM(96, ymm0)
                       STOKER_STREAM(128, ymm0) STOKER_STREAM(160, ymm0) STOKER_STREAM(192, ymm0) STOKER_STREAM(224, ymm0)
                   : : "r"(in), "r"(out) : "xmm0", "memory");
    }
    for (; in != end; in += 64, out += 64) {
      asm volatile(STOKER_STREAM(0, ymm0) STOKER_STREAM(32, ymm0) : : "r"(in), "r"(out) : "xmm0", "memory");
    }
  } else {
    for (; in != end; in += 16, out += 16) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(out), _mm_loadu_si128(reinterpret_cast<const __m128i*>(in)));
    }
  }
#else
  copy_lines(out, in, num_lines);
#endif
}

// Lets nobody see what is written from here on before what went past the caches.
STOKER_INLINE void fence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

// Copies any number of bytes, and neither reads nor writes one beside them: half of the time that would lie in a line
// that nobody has asked for. So what whole blocks leave over is the last block once more, up to the end.
STOKER_INLINE void copy_exactly(uint8_t* out, const uint8_t* in, size_t num_bytes) {
  if (num_bytes >= 64) {
    copy_lines(out, in, num_bytes / kLineBytes);
    copy<64>(out + num_bytes - 64, in + num_bytes - 64);
  } else if (num_bytes >= 32) {
    copy<32>(out, in);
    copy<32>(out + num_bytes - 32, in + num_bytes - 32);
  } else if (num_bytes >= 16) {
    copy<16>(out, in);
    copy<16>(out + num_bytes - 16, in + num_bytes - 16);
  } else if (num_bytes >= 8) {
    copy<8>(out, in);
    copy<8>(out + num_bytes - 8, in + num_bytes - 8);
  } else {
    for (size_t i = 0; i < num_bytes; ++i) out[i] = in[i];
  }
}

}  // namespace stoker
