#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <system_error>
#include <thread>

#include "check.h"
#include "chunk_map.h"
#include "gather.h"

namespace {

// A file that goes away with this.
struct File {
  std::FILE* file = std::tmpfile();
  int fd = fileno(file);

  explicit File(const Bytes& content) {
    CHECK_EQUAL(pwrite(fd, content.data(), content.size(), 0), static_cast<ssize_t>(content.size()));
  }
  ~File() { std::fclose(file); }
};

bool has(const stoker::ChunkMap& chunk, const Bytes& content) {
  return chunk.num_bytes() == content.size() && std::equal(content.begin(), content.end(), chunk.data());
}

uint8_t line_behind(const stoker::ChunkMap& chunk) {
  uint8_t found = 0;
  for (size_t i = 0; i < stoker::kReadBehind; ++i) found |= chunk.data()[chunk.num_bytes() + i];
  return found;
}

}  // namespace

TEST("a map is what the file is, though that is gone, and has a line that can be read behind it") {
  const size_t page = stoker::page_bytes();
  for (const size_t size : {size_t{1}, page - 64, page - 63, page, 3 * page, stoker::kHugeBytes, stoker::kHugeBytes + 1}) {
    const Bytes content = noise(size);
    stoker::ChunkMap chunk;
    {
      const File file(content);
      chunk = stoker::ChunkMap(file.fd, size);
    }
    CHECK(has(chunk, content));
    line_behind(chunk);
    if (size >= stoker::kHugeBytes) CHECK_EQUAL(reinterpret_cast<uintptr_t>(chunk.data()) % stoker::kHugeBytes, 0u);
    CHECK(stoker::are_in_memory({&chunk, 1}));
    while (!stoker::enter({&chunk, 1}, page)) {
    }
  }
  CHECK_THROWS(stoker::ChunkMap(-1, page), std::system_error);
  CHECK_THROWS(stoker::ChunkMap(-1, stoker::kHugeBytes), std::system_error);
}

TEST("files are read side by side into memory that is used again") {
  const Bytes first = noise(3'000'000), second = noise(1), third = noise(stoker::page_bytes());
  const File one(first), two(second), three(third);
  const std::vector<stoker::ChunkFile> files{{one.fd, first.size()}, {two.fd, 1}, {three.fd, third.size()}};
  stoker::WindowMemory memory;
  const uint8_t* place = nullptr;
  for (int round = 0; round < 3; ++round) {
    const std::vector<stoker::ChunkMap> chunks = stoker::read_chunks(files, memory, true);
    CHECK(has(chunks[0], first) && has(chunks[1], second) && has(chunks[2], third));
    line_behind(chunks[2]);
    CHECK(!chunks[0].is_mapped() && stoker::are_in_memory(chunks) && stoker::enter(chunks, 1));
    CHECK(round == 0 || chunks[0].data() == place);
    place = chunks[0].data();
    CHECK_EQUAL(memory.num_free(), 0u);
  }
  CHECK_EQUAL(memory.num_free(), 1u);
  const std::vector<stoker::ChunkFile> longer{{two.fd, 2}}, closed{{-1, 5'000'000}};
  CHECK_THROWS(stoker::read_chunks(longer, memory, true), std::system_error);
  CHECK_THROWS(stoker::read_chunks(closed, memory, true), std::system_error);
}

TEST("windows that several threads read from one memory hold what their files do") {
  const std::vector<Bytes> contents{noise(1'500'000), noise(700'000), noise(2'000'000)};
  const File files[] = {File(contents[0]), File(contents[1]), File(contents[2])};
  stoker::WindowMemory memory;
  bool are_right[] = {true, true, true};
  std::vector<std::thread> threads;
  for (size_t i = 0; i < 3; ++i) {
    threads.emplace_back([&, i] {
      const std::vector<stoker::ChunkFile> its{{files[i].fd, contents[i].size()}};
      for (int round = 0; round < 4; ++round) {
        const auto chunks = stoker::read_chunks(its, memory, false);
        are_right[i] = are_right[i] && has(chunks[0], contents[i]);
        memory.rest();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(are_right[0] && are_right[1] && are_right[2]);
  CHECK(memory.num_free() > 0 && memory.num_free() <= 3);
}

TEST("arrays that do not lie in their chunk, or have another number of rows, make no window") {
  const Bytes content = noise(4096);
  const File file(content);
  const std::vector<stoker::ChunkMap> chunks(2, stoker::ChunkMap(file.fd, content.size()));
  stoker::Table layout;
  layout.record_bytes = 8;
  layout.groups = {{true, false, {4, 2}, {}, {}, {}}, {false, true, {8}, {}, {}, {}}};
  // Five rows: records, places, strips, outer and inner offsets, values.
  const std::vector<stoker::ArrayPlace> right{{0, 40}, {64, 60}, {128, 1000}, {1200, 48}, {1300, 80}, {1400, 2696}};
  const auto window_of = [&](size_t wrong, stoker::ArrayPlace place) {
    std::vector<stoker::ArrayPlace> places(right);
    places.insert(places.end(), right.begin(), right.end());
    places[6 + wrong] = place;
    return stoker::Window(chunks, places, {&layout, 1});
  };
  const stoker::Window window = window_of(0, right[0]);
  CHECK_EQUAL(window.tables[0].num_rows[1], 5u);
  CHECK(window.tables[0].groups[1].values[1] == chunks[1].data() + 1400);
  for (size_t array = 0; array < 6; ++array) {
    CHECK_THROWS(window_of(array, {-1, right[array].num_bytes}), std::invalid_argument);
    CHECK_THROWS(window_of(array, {4096, right[array].num_bytes}), std::invalid_argument);
    CHECK_THROWS(window_of(array, {INT64_MAX, INT64_MAX}), std::invalid_argument);
    CHECK_THROWS(window_of(array, {0, -1}), std::invalid_argument);
  }
  for (const size_t array : {0, 1, 3}) {
    CHECK_THROWS(window_of(array, {0, 4}), std::invalid_argument);
    CHECK_THROWS(window_of(array, {0, right[array].num_bytes * 2}), std::invalid_argument);
  }
  CHECK_THROWS(stoker::Window(chunks, right, {&layout, 1}), std::invalid_argument);
}
