#include "pack.h"

#include <cmath>
#include <cstring>
#include <numeric>
#include <stdexcept>

#include "check.h"

using stoker::Column;

namespace {

template <typename T>
std::vector<T> count(size_t num, T first = 0) {
  std::vector<T> values(num);
  std::iota(values.begin(), values.end(), first);
  return values;
}

template <typename T>
Column column(const std::vector<T>& values, size_t per_row = 1) {
  return {reinterpret_cast<const std::byte*>(values.data()), sizeof(T) * per_row, std::is_signed_v<T>};
}

template <typename T>
T at(const std::vector<std::byte>& block, size_t offset) {
  T value;
  std::memcpy(&value, block.data() + offset, sizeof(T));
  return value;
}

}  // namespace

TEST("records are packed from wherever their columns lie") {
  const auto id = count<int64_t>(300, -5);
  const auto a = count<int16_t>(100, -7), b = count<int16_t>(200, 50);
  const auto wide = count<uint8_t>(900);
  stoker::RecordPacker packer(24);
  packer.add_field(0, 8);
  packer.add_piece(300, {column(id)});
  packer.add_field(8, 8);
  packer.add_piece(100, {column(a)});
  packer.add_piece(0, {column(a)});
  packer.add_piece(200, {column(b)});
  packer.add_field(16, 1);
  packer.add_piece(300, {column(wide, 3)});
  for (const auto& [start, stop] : {std::pair<size_t, size_t>{0, 300}, {99, 101}, {100, 300}, {7, 7}, {300, 300}}) {
    std::vector<std::byte> block((stop - start) * 24, std::byte{0xA5});
    packer.pack(block, start, stop);
    for (size_t row = start; row < stop; ++row) {
      const size_t record = (row - start) * 24;
      CHECK_EQUAL(at<int64_t>(block, record), id[row]);
      CHECK_EQUAL(at<int64_t>(block, record + 8), row < 100 ? a[row] : b[row - 100]);
      CHECK(std::memcmp(block.data() + record + 16, wide.data() + 3 * row, 3) == 0);
      CHECK_EQUAL(at<uint8_t>(block, record + 19), 0xA5);
    }
  }
  std::vector<std::byte> block(24 * 300);
  CHECK_THROWS(packer.pack(block, 0, 301), std::invalid_argument);
  CHECK_THROWS(packer.pack(block, 2, 1), std::invalid_argument);
  CHECK_THROWS(packer.pack(std::span(block).first(23), 0, 1), std::invalid_argument);
  packer.add_field(17, 8);
  CHECK_THROWS(packer.add_piece(1, {column(id)}), std::invalid_argument);
  packer.add_field(0, 4);
  CHECK_THROWS(packer.add_piece(1, {column(a)}), std::invalid_argument);
}

TEST("integers keep their values when they are widened") {
  const std::vector<int8_t> lowest{-128, 127};
  const std::vector<uint8_t> highest{255, 0};
  stoker::RecordPacker packer(16);
  packer.add_field(0, 8);
  packer.add_piece(2, {column(lowest), column(highest)});
  std::vector<std::byte> block(32);
  packer.pack(block, 0, 2);
  CHECK_EQUAL(at<int64_t>(block, 0), -128);
  CHECK_EQUAL(at<int64_t>(block, 8), 255);
  CHECK_EQUAL(at<int64_t>(block, 16), 127);
}

TEST("lists of a row lie side by side, zeros behind them") {
  const std::vector<int64_t> offsets{0, 3, 3, 5}, byte_offsets{0, 1, 3, 3};
  const auto first = count<int32_t>(3, 1), second = count<int32_t>(2, 4);
  const auto bytes = count<uint8_t>(3, 9);
  stoker::ListPacker packer;
  packer.add_field(offsets, 4);
  packer.add_piece(std::as_bytes(std::span(first)));
  packer.add_piece(std::as_bytes(std::span(second)));
  packer.add_field(byte_offsets, 1);
  packer.add_piece(std::as_bytes(std::span(bytes)));
  const std::vector<uint32_t> places{0, 3, 1, 2, 0, 2, 3, 2, 0};
  std::vector<std::byte> block(32, std::byte{0xA5});
  packer.pack(block, places, 0, 3);
  CHECK_EQUAL(at<int32_t>(block, 8), 3);
  CHECK_EQUAL(at<uint32_t>(block, 12), 9u);
  CHECK_EQUAL(at<uint64_t>(block, 16), 10u + (11u << 8));
  CHECK_EQUAL(at<int32_t>(block, 28), 5);
  std::vector<std::byte> rest(16, std::byte{0xA5});
  packer.pack(rest, places, 1, 3);
  CHECK(std::equal(rest.begin(), rest.end(), block.begin() + 16));
  CHECK_THROWS(packer.pack(std::span(rest).first(15), places, 1, 3), std::invalid_argument);
  CHECK_THROWS(packer.pack(block, places, 0, 4), std::invalid_argument);
  std::vector<uint32_t> wrong = places;
  wrong[1] = 4;
  CHECK_THROWS(packer.pack(block, wrong, 0, 3), std::invalid_argument);
  wrong = places;
  for (const uint32_t place : {1u << 31, 1u}) {  // behind the block, and before it
    wrong[6] = place;
    CHECK_THROWS(packer.pack(block, wrong, 1, 3), std::invalid_argument);
  }
}

TEST("rows that differ from the one before are marked") {
  const std::vector<uint8_t> data{1, 1, 1, 2, 2, 1};
  const std::vector<int64_t> starts{0, 1, 2, 4, 4, 4, 6};
  bool changes[] = {true, false, false, false, false, true};
  stoker::mark_changes(data, starts, changes);
  CHECK(!changes[1] && changes[2] && changes[3] && !changes[4] && changes[5]);
  const std::vector<int64_t> beyond{0, 1, 9}, falling{0, 3, 1};
  bool two[] = {true, false};
  CHECK_THROWS(stoker::mark_changes(data, beyond, two), std::invalid_argument);
  CHECK_THROWS(stoker::mark_changes(data, falling, two), std::invalid_argument);
}

TEST("every float16 is widened to the float it is") {
  std::vector<uint16_t> halves(1 << 16);
  std::iota(halves.begin(), halves.end(), uint16_t{0});
  std::vector<float> singles(halves.size());
  stoker::widen_float16(halves, singles);
  for (const uint16_t half : halves) {
    const int exponent = half >> 10 & 31;
    const float fraction = static_cast<float>(half & 1023) / 1024;
    const float size = exponent == 31 ? (fraction ? NAN : INFINITY)
                                      : exponent ? std::ldexp(1 + fraction, exponent - 15) : std::ldexp(fraction, -14);
    CHECK(std::isnan(size) ? std::isnan(singles[half]) : singles[half] == std::copysign(size, half >> 15 ? -1.0F : 1.0F));
    CHECK(std::signbit(singles[half]) == (half >> 15 == 1));
  }
}
