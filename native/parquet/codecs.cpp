#include "codecs.h"

#include <dlfcn.h>

#include <memory>

#include "snappy.h"

namespace stoker::parquet {
namespace {

// Opened once, and never closed: threads that end later free their contexts by it.
void* open_library(const char* name, const char* name_on_mac) {
#if defined(__APPLE__)
  name = name_on_mac;
#else
  (void)name_on_mac;
#endif
  return dlopen(name, RTLD_NOW | RTLD_LOCAL);
}

template <typename Function>
void find(void* library, const char* name, Function*& function) {
  function = library ? reinterpret_cast<Function*>(dlsym(library, name)) : nullptr;
}

// Nearly every system has it: its package manager needs it.
struct Zstd {
  void* (*create)();
  size_t (*free)(void*);
  size_t (*decompress)(void*, void*, size_t, const void*, size_t);

  Zstd() {
    void* library = open_library("libzstd.so.1", "libzstd.1.dylib");
    find(library, "ZSTD_createDCtx", create);
    find(library, "ZSTD_freeDCtx", free);
    find(library, "ZSTD_decompressDCtx", decompress);
  }
  bool is_there() const { return create && free && decompress; }

  static const Zstd& get() {
    static const Zstd zstd;
    return zstd;
  }
};

// A context a thread: to make one takes longer than to decompress a small page.
void* zstd_context() {
  struct Free {
    void operator()(void* context) const { Zstd::get().free(context); }
  };
  thread_local std::unique_ptr<void, Free> context(Zstd::get().create());
  return context.get();
}

struct Lz4 {
  int (*decompress)(const char*, char*, int, int);

  Lz4() { find(open_library("liblz4.so.1", "liblz4.1.dylib"), "LZ4_decompress_safe", decompress); }

  static const Lz4& get() {
    static const Lz4 lz4;
    return lz4;
  }
};

}  // namespace

bool can_decompress(Codec codec) {
  switch (codec) {
    case Codec::kUncompressed:
    case Codec::kSnappy:
      return true;
    case Codec::kZstd:
      return Zstd::get().is_there();
    case Codec::kLz4Raw:
      return Lz4::get().decompress;
  }
  return false;
}

bool decompress(Codec codec, std::span<const uint8_t> packed, std::span<uint8_t> out) {
  if (packed.empty()) return out.empty();
  if (!can_decompress(codec)) return false;
  switch (codec) {
    case Codec::kUncompressed:
      return false;
    case Codec::kSnappy:
      return unsnap(packed, out);
    case Codec::kZstd: {
      void* context = zstd_context();
      return context && Zstd::get().decompress(context, out.data(), out.size(), packed.data(), packed.size()) ==
                            out.size();
    }
    case Codec::kLz4Raw: {
      constexpr size_t most = 0x7FFFFFFF;
      if (packed.size() > most || out.size() > most) return false;
      const int num = Lz4::get().decompress(reinterpret_cast<const char*>(packed.data()),
                                            reinterpret_cast<char*>(out.data()), static_cast<int>(packed.size()),
                                            static_cast<int>(out.size()));
      return num >= 0 && static_cast<size_t>(num) == out.size();
    }
  }
  return false;
}

}  // namespace stoker::parquet
