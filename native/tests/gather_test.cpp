#include "gather.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <numeric>
#include <string>

#include "check.h"
#include "moves.h"

namespace {

size_t draw(size_t most) { return std::uniform_int_distribution<size_t>(0, most)(generator); }

bool same(const uint8_t* a, const uint8_t* b, size_t num_bytes) { return std::equal(a, a + num_bytes, b); }

// Memory that begins on a cache line, or so many bytes behind one; what is written behind it is found by sanitizers.
struct Aligned {
  Bytes memory;
  uint8_t* begin;

  explicit Aligned(size_t num_bytes, size_t shift = 0) : memory(num_bytes + stoker::kLineBytes) {
    const size_t left = (0 - reinterpret_cast<uintptr_t>(memory.data())) % stoker::kLineBytes;
    memory.resize(left + shift + num_bytes);
    begin = memory.data() + left + shift;
  }
};

struct Chosen {
  std::vector<int64_t> slot, row;

  Chosen(size_t num, const std::vector<size_t>& num_rows) {
    for (size_t i = 0; i < num; ++i) {
      slot.push_back(static_cast<int64_t>(draw(num_rows.size() - 1)));
      row.push_back(static_cast<int64_t>(draw(num_rows[static_cast<size_t>(slot.back())] - 1)));
    }
  }
};

// A chunk of strips of three fields, with room for a line behind them.
struct StripChunk {
  static constexpr size_t kFields = 3;
  std::vector<int64_t> value_bytes{8, 4, 1};
  std::vector<uint32_t> places;
  std::vector<std::vector<Bytes>> lists;  // [rows][fields]
  Bytes strips;

  StripChunk(size_t num_rows, size_t longest) : lists(num_rows) {
    for (auto& row : lists) {
      places.push_back(static_cast<uint32_t>(strips.size() / 8));
      for (size_t f = 0; f < kFields; ++f) {
        const size_t length = draw(draw(30) ? longest / 100 + 1 : longest);
        row.push_back(noise(length * static_cast<size_t>(value_bytes[f])));
        places.push_back(static_cast<uint32_t>(length));
        strips.insert(strips.end(), row[f].begin(), row[f].end());
      }
      strips.resize((strips.size() + 7) / 8 * 8);
    }
    strips.resize(strips.size() + stoker::kLineBytes);
  }
};

}  // namespace

#if defined(__x86_64__) && defined(__linux__)
TEST("this processor is known for what the system says it is, which chooses among versions of functions") {
  std::ifstream file("/proc/cpuinfo");
  const std::string about{std::istreambuf_iterator<char>(file), {}};
  __builtin_cpu_init();
  CHECK(!!__builtin_cpu_supports("avx2") == (about.find(" avx2 ") != std::string::npos));
  CHECK(!!__builtin_cpu_supports("avx512f") == (about.find(" avx512vl ") != std::string::npos));
}
#endif

TEST("records of any width go to their places") {
  for (const size_t width : {1, 2, 3, 4, 8, 16, 24, 32, 48, 64, 100, 640, 4160}) {
    for (const size_t num : {0, 1, 33, 2000}) {
      const std::vector<Bytes> chunks{noise(20 * width), noise(3 * width)};
      const stoker::Table table{width, {chunks[0].data(), chunks[1].data()}, {}, {}};
      const Chosen chosen(num, {20, 3});
      std::vector<int64_t> places(num);
      std::iota(places.begin(), places.end(), 0);
      std::shuffle(places.begin(), places.end(), generator);
      const stoker::Part part{&table, chosen.slot, chosen.row};
      for (const bool is_placed : {false, true}) {
        Aligned out(num * width);
        stoker::Rows rows{{&part, 1}, is_placed ? std::span<const int64_t>(places) : std::span<const int64_t>(), num};
        stoker::take_records(rows, {out.begin, width});
        for (size_t i = 0; i < num; ++i) {
          const size_t to = is_placed ? static_cast<size_t>(places[i]) : i;
          const uint8_t* from = chunks[static_cast<size_t>(chosen.slot[i])].data() + static_cast<size_t>(chosen.row[i]) * width;
          CHECK(same(out.begin + to * width, from, width));
        }
      }
    }
  }
}

TEST("lists of strips come out whole, and what lies beside their memory is not touched") {
  for (const size_t longest : {0, 3, 300, 30'000}) {
    const std::vector<StripChunk> chunks{{40, longest}, {1, longest}};
    stoker::ListGroup group{true, false, chunks[0].value_bytes, {}, {}, {}};
    for (const StripChunk& chunk : chunks) {
      group.places.push_back(reinterpret_cast<const uint8_t*>(chunk.places.data()));
      group.values.push_back(chunk.strips.data());
    }
    const stoker::Table table{0, {}, {group}, {}};
    for (const size_t num : {0, 1, 31, 33, 3000}) {
      const Chosen chosen(num, {40, 1});
      const stoker::Part part{&table, chosen.slot, chosen.row};
      std::vector<int64_t> offsets(StripChunk::kFields * (num + 1));
      stoker::FoundLists found(table.groups[0], num, offsets.data());
      stoker::find_lists({{&part, 1}, {}, num}, 0, found);
      for (const size_t shift : {0, 8}) {
        found.lay_out();
        Aligned out(found.num_bytes, shift);
        found.copy(out.begin);
        for (size_t f = 0; f < StripChunk::kFields; ++f) {
          const uint8_t* at = out.begin + found.begins[f];
          for (size_t i = 0; i < num; ++i) {
            const Bytes& list = chunks[static_cast<size_t>(chosen.slot[i])].lists[static_cast<size_t>(chosen.row[i])][f];
            CHECK(same(at, list.data(), list.size()));
            at += list.size();
          }
        }
      }
    }
  }
}

TEST("lists are copied exactly: no byte beside them is read or written") {
  for (const size_t longest : {10, 700, 9000}) {
    const size_t num = 1500;
    std::vector<Bytes> lists;
    std::vector<const uint8_t*> sources;
    std::vector<int64_t> offsets{0};
    for (size_t i = 0; i < num; ++i) {
      lists.push_back(noise(draw(longest)));
      lists.back().shrink_to_fit();
      offsets.push_back(offsets.back() + static_cast<int64_t>(lists.back().size()));
    }
    for (const Bytes& list : lists) sources.push_back(list.data());
    Aligned out(static_cast<size_t>(offsets.back()));
    stoker::copy_lists(sources.data(), 1, offsets, out.begin);
    for (size_t i = 0; i < num; ++i) CHECK(same(out.begin + offsets[i], sources[i], lists[i].size()));
  }
}

TEST("different rows are numbered batch by batch in the order in which they come first") {
  const std::vector<int64_t> slot{0, 0, 1, 0, 0, 1}, row{5, 5, 5, 2, 5, 5}, sizes{4, 0, 2};
  std::vector<int64_t> found_slot(6), found_row(6), counts(3);
  std::vector<int32_t> number(6);
  const size_t num = stoker::distinct(slot, row, sizes, found_slot, found_row, number, counts);
  CHECK_EQUAL(num, size_t{5});
  CHECK(number == (std::vector<int32_t>{0, 0, 1, 2, 0, 1}));
  CHECK(counts == (std::vector<int64_t>{3, 0, 2}));
  CHECK(std::vector<int64_t>(found_row.begin(), found_row.begin() + 5) == (std::vector<int64_t>{5, 5, 2, 5, 5}));
}
