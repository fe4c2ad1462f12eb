// Thrift's compact protocol, as far as Parquet's footers and page headers need it.
//
// No byte is believed: a length that leads beyond the end fails the reader, which then reads nothing but ends.
//
// Source: Thrift compact protocol specification.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>

namespace stoker::parquet {

enum ThriftType : uint8_t {
  kStop, kTrue, kFalse, kByte, kI16, kI32, kI64, kDouble, kBinary, kList, kSet, kMap, kStruct, kUuid
};

class ThriftReader {
 public:
  explicit ThriftReader(std::span<const uint8_t> bytes, size_t at = 0) : bytes_(bytes), at_(at) {}

  // Where the next byte stands.
  size_t at() const { return at_; }

  // Whether something was cut short, or cannot be. It stays so.
  bool failed() const { return failed_; }
  void fail() {
    failed_ = true;
    at_ = bytes_.size();
  }

  uint64_t varint() {
    uint64_t result = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const uint8_t byte = next_byte();
      if (shift == 63 && byte > 1) break;  // more than 64 bits
      result |= uint64_t{byte & 127u} << shift;
      if (byte < 128) return result;
    }
    fail();
    return 0;
  }

  int64_t zigzag() {
    const uint64_t n = varint();
    return static_cast<int64_t>((n >> 1) ^ (~(n & 1) + 1));
  }

  // Passes a binary value, and returns its length.
  int64_t binary() {
    const uint64_t size = varint();
    advance(size);
    return failed_ ? 0 : static_cast<int64_t>(size);
  }

  struct Field {
    int64_t number = 0;
    uint8_t type = kStop;

    bool is(int64_t n, uint8_t t) const { return number == n && type == t; }
  };

  // Reads the head of a struct's next field behind `field`; false where the struct ends.
  bool next(Field& field) {
    const uint8_t byte = next_byte();
    field.type = byte & 15;
    if (field.type == kStop) return false;
    if (byte >> 4)
      field.number = static_cast<int64_t>(static_cast<uint64_t>(field.number) + (byte >> 4));
    else
      field.number = zigzag();
    return !failed_;
  }

  struct Elements {
    uint64_t count;
    uint8_t type;
  };

  // Reads the head of a list. Its count is not proven: whoever reads elements stops where the reader has failed.
  Elements elements() {
    const uint8_t byte = next_byte();
    uint64_t count = byte >> 4;
    if (count == 15) count = varint();
    return {count, static_cast<uint8_t>(byte & 15)};
  }

  // Passes a value, whatever is in it; so deep in others.
  void skip(uint8_t type, int depth = 0) {
    if (type == kI16 || type == kI32 || type == kI64)
      varint();
    else if (type == kBinary)
      binary();
    else if (type != kTrue && type != kFalse)
      skip_nested(type, depth);
  }

 private:
  void skip_nested(uint8_t type, int depth);
  void skip_elements(uint64_t count, std::initializer_list<uint8_t> types, int depth);

  uint8_t next_byte() {
    if (at_ < bytes_.size()) return bytes_[at_++];
    failed_ = true;
    return 0;
  }

  void advance(uint64_t num) {
    if (num > bytes_.size() - at_)
      fail();
    else
      at_ += num;
  }

  std::span<const uint8_t> bytes_;
  size_t at_;
  bool failed_ = false;
};

}  // namespace stoker::parquet
