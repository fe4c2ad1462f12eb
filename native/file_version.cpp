#include "file_version.h"

#include <sys/stat.h>

#include <chrono>

namespace stoker {
namespace {

int64_t mtime_ns_of(const struct stat& about) {
#if defined(__APPLE__)
  const timespec& time = about.st_mtimespec;
#else
  const timespec& time = about.st_mtim;
#endif
  return static_cast<int64_t>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}

bool has_changed(const char* name, const FileVersion& version) {
  struct stat about;
  if (version.inode < 0 || stat(name, &about) != 0) return true;
  return static_cast<int64_t>(about.st_ino) != version.inode || mtime_ns_of(about) != version.mtime_ns ||
         static_cast<int64_t>(about.st_size) != version.size_bytes;
}

}  // namespace

size_t find_changed_files(const KnownFiles& known, std::span<const int64_t> files, std::span<bool> changed,
                          int64_t patience_ns) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  const auto patience = std::chrono::nanoseconds(patience_ns);
  for (size_t i = 0; i < files.size(); ++i) {
    const size_t file = static_cast<size_t>(files[i]);
    changed[i] = has_changed(known.names + file * known.name_bytes, known.versions[file]);
    if (Clock::now() - start > patience) return i + 1;
  }
  return files.size();
}

}  // namespace stoker
