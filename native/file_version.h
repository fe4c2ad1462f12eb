// Which file a name stands for: its inode, when it was written, how long it is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace stoker {

struct FileVersion {
  int64_t inode, mtime_ns, size_bytes;
};

// Files by name, and which each of them was.
struct KnownFiles {
  const char* names;  // each of `name_bytes`, zeros behind it, at least one
  size_t name_bytes;
  std::span<const FileVersion> versions;  // an inode below zero: no file is known
};

// Looks at some of the files, notes which are not there any more or are other ones, and returns how many it looked at:
// all of them, or fewer once `patience_ns` is over.
size_t find_changed_files(const KnownFiles& known, std::span<const int64_t> files, std::span<bool> changed,
                          int64_t patience_ns);

}  // namespace stoker
