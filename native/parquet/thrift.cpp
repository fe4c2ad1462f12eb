#include "thrift.h"

namespace stoker::parquet {
namespace {

// Structs in lists in structs: Parquet's own go down six levels.
constexpr int kMostDepth = 30;

}  // namespace

void ThriftReader::skip_nested(uint8_t type, int depth) {
  if (depth > kMostDepth) return fail();
  switch (type) {
    case kByte: return advance(1);
    case kDouble: return advance(8);
    case kUuid: return advance(16);
    case kList:
    case kSet: {
      const Elements head = elements();
      return skip_elements(head.count, {head.type}, depth + 1);
    }
    case kMap: {
      const uint64_t count = varint();
      const uint8_t types = count ? next_byte() : 0;  // an empty one ends here
      return skip_elements(count, {static_cast<uint8_t>(types >> 4), static_cast<uint8_t>(types & 15)}, depth + 1);
    }
    case kStruct:
      for (Field field; next(field);) skip(field.type, depth + 1);
      return;
    default: fail();
  }
}

void ThriftReader::skip_elements(uint64_t count, std::initializer_list<uint8_t> types, int depth) {
  // Each takes a byte at least. Without any, their type may be anything, such as fastparquet's 0.
  if (count > bytes_.size() - at_) return fail();
  for (uint64_t i = 0; i < count && !failed_; ++i)
    for (const uint8_t type : types) {
      if (type == kStop) fail();
      skip(type == kTrue || type == kFalse ? uint8_t{kByte} : type, depth);  // a byte in a list, and none as a field
    }
}

}  // namespace stoker::parquet
