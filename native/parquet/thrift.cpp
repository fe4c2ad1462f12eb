#include "thrift.h"

namespace stoker::parquet {
namespace {

// Structs in lists in structs: Parquet's own go down six levels.
constexpr int kMostDepth = 30;

// What is open while values are passed: a struct, which says itself where it ends, or so many elements.
struct Level {
  bool is_struct = false;
  uint64_t left = 0;
  uint8_t types[2] = {};  // of the elements in turn: those of a map are key, value, key, ...
};

}  // namespace

void ThriftReader::skip_nested(uint8_t type) {
  Level levels[kMostDepth + 1];
  int depth = 0;
  for (;;) {
    switch (type) {
      case kTrue:
      case kFalse:
        break;
      case kByte:
        advance(1);
        break;
      case kI16:
      case kI32:
      case kI64:
        varint();
        break;
      case kDouble:
        advance(8);
        break;
      case kBinary:
        binary();
        break;
      case kUuid:
        advance(16);
        break;
      case kList:
      case kSet: {
        const Elements head = elements();
        // Each takes a byte at least. Without any, their type may be anything, such as fastparquet's 0.
        if (head.count > bytes_.size() - at_ || (head.count && head.type == kStop)) fail();
        if (++depth <= kMostDepth) levels[depth] = {false, head.count, {head.type, head.type}};
        break;
      }
      case kMap: {
        const uint64_t count = varint();
        if (count > bytes_.size() - at_) fail();
        const uint8_t types = count && !failed_ ? next_byte() : 0x11;  // an empty one ends here
        const uint8_t key = types >> 4, value = types & 15;
        if (key == kStop || value == kStop) fail();
        if (++depth <= kMostDepth) levels[depth] = {false, failed_ ? 0 : 2 * count, {value, key}};
        break;
      }
      case kStruct:
        if (++depth <= kMostDepth) levels[depth] = {true, 0, {}};
        break;
      default:
        fail();
    }
    if (depth > kMostDepth) fail();
    // The next value of what is open, if any.
    for (;;) {
      if (failed_ || depth == 0) return;
      Level& level = levels[depth];
      if (level.is_struct) {
        Field field;
        if (next(field)) {
          type = field.type;
          break;
        }
      } else if (level.left) {
        type = level.types[--level.left & 1];
        if (type == kTrue || type == kFalse) type = kByte;  // a byte in a list, and none as a field
        break;
      }
      --depth;
    }
  }
}

}  // namespace stoker::parquet
