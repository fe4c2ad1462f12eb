// What a fuzz target gets: some numbers that choose what is called, and the bytes that are not to be believed.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <span>
#include <vector>

// What must hold whatever the bytes are.
#define MUST(condition)                                                             \
  do {                                                                              \
    if (!(condition)) {                                                             \
      std::fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                 \
    }                                                                               \
  } while (false)

namespace fuzz {

class Input {
 public:
  Input(const uint8_t* data, size_t size) : left_(data, size) {}

  // Takes a number below `end` from one byte; 0 where there is none.
  unsigned below(unsigned end) {
    if (left_.empty()) return 0;
    const uint8_t byte = left_.front();
    left_ = left_.subspan(1);
    return byte % end;
  }

  // Takes the rest as memory of its own, behind which nothing may be read.
  std::vector<uint8_t> rest() {
    std::vector<uint8_t> bytes(left_.begin(), left_.end());
    bytes.shrink_to_fit();
    left_ = {};
    return bytes;
  }

 private:
  std::span<const uint8_t> left_;
};

}  // namespace fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
