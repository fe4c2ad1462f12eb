#include "codecs.h"

#include <dlfcn.h>

#include <array>
#include <memory>

#include "../bytes.h"

namespace stoker::parquet {
namespace {

// Finds a function of a library of the system's, which is never closed: threads that end later free their contexts by it.
template <typename Function>
Function* find(const char* library, const char* on_mac, const char* name) {
#if defined(__APPLE__)
  library = on_mac;
#else
  (void)on_mac;
#endif
  void* found = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  return found ? reinterpret_cast<Function*>(dlsym(found, name)) : nullptr;
}

// Nearly every system has zstd: its package manager needs it.
struct Codecs {
  template <typename Function>
  static Function* zstd(const char* name) { return find<Function>("libzstd.so.1", "libzstd.1.dylib", name); }
  using Unzstd = size_t(void* context, void*, size_t, const void*, size_t);
  using Unlz4 = int(const char*, char*, int, int);

  void* (*create)() = zstd<void*()>("ZSTD_createDCtx");
  size_t (*free)(void*) = zstd<size_t(void*)>("ZSTD_freeDCtx");
  Unzstd* unzstd = zstd<Unzstd>("ZSTD_decompressDCtx");
  Unlz4* unlz4 = find<Unlz4>("liblz4.so.1", "liblz4.1.dylib", "LZ4_decompress_safe");

  static const Codecs& get() {
    static const Codecs codecs;
    return codecs;
  }
};

// A context a thread: to make one takes longer than to decompress a small page.
void* zstd_context() {
  thread_local const std::unique_ptr<void, size_t (*)(void*)> context(Codecs::get().create(), Codecs::get().free);
  return context.get();
}

// What is copied at once where there is room for more than is asked for.
constexpr ptrdiff_t kStep = 8;
// Lengths of literals from here on stand in the bytes behind the tag.
constexpr uint64_t kShort = 60;

// What each byte adds to a checksum, followed by so many others.
constexpr auto kCrcTables = [] {
  std::array<std::array<uint32_t, 256>, 8> tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
    tables[0][byte] = crc;
  }
  for (size_t k = 1; k < 8; ++k)
    for (size_t byte = 0; byte < 256; ++byte)
      tables[k][byte] = tables[k - 1][byte] >> 8 ^ tables[0][tables[k - 1][byte] & 255];
  return tables;
}();

// Source: Snappy's format_description.txt: a length, then literals and copies of what came before.
STOKER_VERSIONS
bool unsnap(std::span<const uint8_t> packed, std::span<uint8_t> out) {
  const uint8_t *source = packed.data(), *const source_end = source + packed.size();
  uint64_t promised;
  if (!read_varint(source, source_end, promised) || promised != out.size()) return false;
  uint8_t *const begin = out.data(), *to = begin, *const end = begin + out.size();
  while (source < source_end) {
    const uint64_t tag = *source++;
    const uint64_t kind = tag & 3;
    if (kind == 0) {
      uint64_t more = tag >> 2;
      if (more >= kShort) {
        const ptrdiff_t num = static_cast<ptrdiff_t>(more - kShort + 1);
        if (source_end - source < num) return false;
        more = load_few(source, static_cast<size_t>(num));
        source += num;
      }
      const ptrdiff_t length = static_cast<ptrdiff_t>(more) + 1;
      if (length > source_end - source || length > end - to) return false;
      if (length <= 2 * kStep && source_end - source >= 2 * kStep && end - to >= 2 * kStep)
        move<2 * kStep>(to, source);
      else
        std::memcpy(to, source, static_cast<size_t>(length));
      source += length;
      to += length;
      continue;
    }
    ptrdiff_t length, distance;
    if (kind == 1) {
      if (source >= source_end) return false;
      length = static_cast<ptrdiff_t>((tag >> 2) & 7) + 4;
      distance = static_cast<ptrdiff_t>((tag >> 5) << 8 | *source++);
    } else {
      length = static_cast<ptrdiff_t>(tag >> 2) + 1;
      const ptrdiff_t num = kind == 2 ? 2 : 4;
      if (source_end - source < num) return false;
      distance = kind == 2 ? load<uint16_t>(source) : static_cast<ptrdiff_t>(load<uint32_t>(source));
      source += num;
    }
    if (distance == 0 || distance > to - begin || length > end - to) return false;
    const uint8_t* back = to - distance;
    uint8_t* const stop = to + length;
    if (end - to >= length + 2 * kStep) {
      // What is nearer than a step repeats itself: twice as much of it each time, until it is as far as that.
      while (to - back < kStep && to < stop) {
        move<kStep>(to, back);
        to += to - back;
      }
      for (; to < stop; to += kStep, back += kStep) move<kStep>(to, back);
    } else {
      while (to < stop) *to++ = *back++;
    }
    to = stop;
  }
  return to == end;
}

}  // namespace

uint32_t crc32(std::span<const uint8_t> bytes) {
  uint32_t crc = 0xFFFFFFFF;
  for (; bytes.size() >= 8; bytes = bytes.subspan(8)) {
    const uint64_t eight = load<uint64_t>(bytes.data()) ^ crc;
    crc = 0;
    for (size_t k = 0; k < 8; ++k) crc ^= kCrcTables[7 - k][eight >> (8 * k) & 255];
  }
  for (const uint8_t byte : bytes) crc = crc >> 8 ^ kCrcTables[0][(crc ^ byte) & 255];
  return ~crc;
}

bool can_decompress(Codec codec) {
  const Codecs& codecs = Codecs::get();
  switch (codec) {
    case Codec::kUncompressed:
    case Codec::kSnappy: return true;
    case Codec::kZstd: return codecs.create && codecs.free && codecs.unzstd;
    case Codec::kLz4Raw: return codecs.unlz4;
  }
  return false;
}

bool decompress(Codec codec, std::span<const uint8_t> packed, std::span<uint8_t> out) {
  constexpr size_t most = 0x7FFFFFFF;
  if (packed.empty()) return out.empty();
  if (!can_decompress(codec)) return false;
  if (codec == Codec::kSnappy) return unsnap(packed, out);
  if (codec == Codec::kZstd) {
    void* context = zstd_context();
    return context && Codecs::get().unzstd(context, out.data(), out.size(), packed.data(), packed.size()) == out.size();
  }
  if (codec != Codec::kLz4Raw || packed.size() > most || out.size() > most) return false;
  const int num = Codecs::get().unlz4(reinterpret_cast<const char*>(packed.data()), reinterpret_cast<char*>(out.data()),
                                      static_cast<int>(packed.size()), static_cast<int>(out.size()));
  return num >= 0 && static_cast<size_t>(num) == out.size();
}

}  // namespace stoker::parquet
