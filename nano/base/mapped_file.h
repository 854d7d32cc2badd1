// A file mapped read-only into memory. Pages come in when touched and can be given back once repacked. Writing, and
// what lies in the file, are not here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace nano {

class MappedFile {
 public:
  explicit MappedFile(const std::string& path);  // Error: missing, a directory, no permission, empty
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const uint8_t* data() const { return data_; }
  size_t size() const { return size_; }
  const std::string& path() const { return path_; }
  // Tells the kernel that the pages that lie wholly in [begin, begin + bytes) are not needed for now. Reading
  // them again is still right, only slower.
  void drop_pages(const void* begin, size_t bytes) const;

 private:
  std::string path_;
  const uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

// For main, once: when a mapped file turns out to be shorter than it was, the kernel sends SIGBUS to whoever reads
// there. The process then ends with one line and exit code 1.
void report_truncated_files();

// The whole file as a string; Error as above, but an empty one is allowed.
std::string read_file(const std::string& path);

}  // namespace nano
