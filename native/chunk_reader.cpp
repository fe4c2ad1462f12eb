#include "chunk_reader.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>

namespace stoker {
namespace {

// Memories that are in use at one time where nobody is slow: one window is used, the next one read.
constexpr size_t kNumWanted = 2;
// How long to wait for one of them before another is taken. The window before the last one is given back a few batches
// after the last one is first used; a loop that takes longer for these does not wait for windows.
constexpr std::chrono::milliseconds kWait(50);
// Windows in a row that needed no memory, after which what is free goes back: where only some of a data set lies in the
// page cache, windows that are mapped and windows that are read take turns.
constexpr size_t kMostUnused = 16;

// Whole epochs beside two threads that gather, disk alone 2.25 GB/s: eight threads with 512 KiB 2.0, twelve 2.07, three
// with 1 MiB 1.9, six 2.0, four with 4 MiB 1.8.
constexpr size_t kPieceBytes = size_t{512} << 10, kNumThreads = 8;

size_t whole_pages(size_t num_bytes) { return (num_bytes + page_bytes() - 1) / page_bytes() * page_bytes(); }

#if defined(O_DIRECT)
constexpr int kDirect = O_DIRECT;
#else
constexpr int kDirect = 0;
#endif

struct Piece {
  int fd;
  size_t offset, num_bytes;
  uint8_t* to;
};

struct Failure {
  int error = 0;
  size_t missing_bytes = 0;

  explicit operator bool() const { return error || missing_bytes; }
};

Failure read(const Piece& piece) {
  for (size_t done = 0; done < piece.num_bytes;) {
    const size_t asked = whole_pages(piece.num_bytes) - done;
    const ssize_t got = pread(piece.fd, piece.to + done, asked, static_cast<off_t>(piece.offset + done));
    if (got > 0) {
      done += static_cast<size_t>(got);
      continue;
    }
    if (got == 0) return {0, piece.num_bytes - done};
    if (errno == EINTR) continue;
    const int error = errno, flags = kDirect ? fcntl(piece.fd, F_GETFL) : 0;
    // A file system that takes the flag and then wants other borders, or has none.
    if (error != EINVAL || flags < 0 || !(flags & kDirect)) return {error, 0};
    fcntl(piece.fd, F_SETFL, flags & ~kDirect);
  }
  return {};
}

// Reads all pieces; the first failure ends it.
Failure read_all(std::span<const Piece> pieces) {
  std::atomic<size_t> next = 0;
  std::atomic<bool> has_failed = false;
  Failure failure;
  const auto work = [&] {
    for (size_t i; !has_failed && (i = next++) < pieces.size();) {
      if (const Failure found = read(pieces[i]); found && !has_failed.exchange(true)) failure = found;
    }
  };
  std::vector<std::thread> threads;
  threads.reserve(kNumThreads);
  try {
    while (threads.size() + 1 < std::min(kNumThreads, pieces.size())) threads.emplace_back(work);
  } catch (const std::system_error&) {  // NOLINT(bugprone-empty-catch): where no more can be had, these read all
  }
  work();
  for (std::thread& thread : threads) thread.join();
  return failure;
}

}  // namespace

struct WindowMemory::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::unique_ptr<Mapping>> free;
  size_t num_given = 0, num_needed = 0, num_unused = 0;

  void give(std::unique_ptr<Mapping> mapping) {
    const std::lock_guard lock(mutex);
    --num_given;
    // As many as were ever in use at one time: one that were let go of would be missed soon, and cost its pages.
    if (num_given + free.size() < num_needed) free.push_back(std::move(mapping));
    changed.notify_one();
  }
};

WindowMemory::WindowMemory() : state_(std::make_shared<State>()) {}

std::shared_ptr<Mapping> WindowMemory::take(size_t num_bytes, bool waits) {
  State& state = *state_;
  std::unique_ptr<Mapping> found;
  {
    std::unique_lock lock(state.mutex);
    state.num_unused = 0;
    if (waits && state.num_given >= kNumWanted && state.free.empty()) {
      state.changed.wait_for(lock, kWait, [&] { return state.num_given < kNumWanted || !state.free.empty(); });
    }
    state.num_needed = std::max(state.num_needed, ++state.num_given);
    const auto fits = std::find_if(state.free.begin(), state.free.end(),
                                   [&](const auto& mapping) { return mapping->num_bytes >= num_bytes; });
    if (fits != state.free.end()) {
      found = std::move(*fits);
      state.free.erase(fits);
    } else {
      state.free.clear();  // too small for what is needed now
    }
  }
  try {
    // Windows differ in size: a quarter more. Addresses beyond what is read cost nothing. Read into whole huge pages, a
    // disk gives 2.1 to 2.6 GB/s here, into pages of 4 KiB 1.3 to 1.8.
    if (!found) found = std::make_unique<Mapping>(num_bytes + num_bytes / 4);
  } catch (...) {
    const std::lock_guard lock(state.mutex);
    --state.num_given;
    throw;
  }
  return {found.release(), [state = state_](Mapping* mapping) { state->give(std::unique_ptr<Mapping>(mapping)); }};
}

void WindowMemory::rest() {
  const std::lock_guard lock(state_->mutex);
  if (++state_->num_unused >= kMostUnused) state_->free.clear();
}

void WindowMemory::clear() {
  const std::lock_guard lock(state_->mutex);
  state_->free.clear();
}

size_t WindowMemory::num_free() const {
  const std::lock_guard lock(state_->mutex);
  return state_->free.size();
}

std::vector<ChunkMap> read_chunks(std::span<const ChunkFile> files, WindowMemory& memory, bool waits) {
  size_t end = 0;
  for (const ChunkFile& file : files) end += whole_pages(file.num_bytes);
  const std::shared_ptr<Mapping> target = memory.take(end + kReadBehind, waits);
  std::vector<ChunkMap> chunks;
  std::vector<Piece> pieces;
  uint8_t* at = target->begin;
  for (const ChunkFile& file : files) {
    chunks.emplace_back(target, at, file.num_bytes);
    for (size_t begin = 0; begin < file.num_bytes; begin += kPieceBytes) {
      pieces.push_back({file.fd, begin, std::min(kPieceBytes, file.num_bytes - begin), at + begin});
    }
    at += whole_pages(file.num_bytes);
  }
  if (const Failure failure = read_all(pieces)) {
    const int error = failure.error ? failure.error : EIO;
    throw std::system_error(error, std::generic_category(),
                            failure.error ? "pread" : "the file ends " + std::to_string(failure.missing_bytes) + " bytes too early");
  }
  return chunks;
}

}  // namespace stoker
