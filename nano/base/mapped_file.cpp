#include "base/mapped_file.h"

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <iterator>
#include <string_view>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"  // Error

namespace nano {

namespace {

int open_regular(const std::string& path, size_t& size) {
  int fd =
      open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a pipe must not make us wait for a writer
  if (fd < 0) throw Error(std::string("cannot open: ") + std::strerror(errno), path);
  struct stat info;
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    close(fd);
    throw Error("not a regular file", path);
  }
  size = size_t(info.st_size);
  return fd;
}

// What Git LFS leaves in place of a file that it did not fetch would be taken for a damaged one.
void check_not_lfs_pointer(std::string_view data, const std::string& path) {
  if (data.substr(0, 23) == "version https://git-lfs")
    throw Error("this is a Git LFS pointer, not the file itself", path, "fetch it: git lfs pull");
}

}  // namespace

MappedFile::MappedFile(const std::string& path) : path_(path) {
  int fd = open_regular(path, size_);
  if (size_ == 0) {
    close(fd);
    throw Error("the file is empty (0 bytes)", path, "was the download cut short?");
  }
  void* p = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd, 0);
  close(fd);
  if (p == MAP_FAILED) throw Error(std::string("cannot map: ") + std::strerror(errno), path);
  data_ = static_cast<const uint8_t*>(p);
  check_not_lfs_pointer({static_cast<const char*>(p), size_}, path);
}

MappedFile::~MappedFile() { munmap(const_cast<uint8_t*>(data_), size_); }

void MappedFile::drop_pages(const void* begin, size_t bytes) const {
  const uintptr_t page = uintptr_t(sysconf(_SC_PAGESIZE));
  uintptr_t first = (reinterpret_cast<uintptr_t>(begin) + page - 1) / page * page;
  uintptr_t last = (reinterpret_cast<uintptr_t>(begin) + bytes) / page * page;
  if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

void report_truncated_files() {
  struct sigaction action = {};
  // Without SA_RESETHAND: a second thread may meet the same fault before the first has ended the process.
  action.sa_flags = SA_SIGINFO;
  action.sa_sigaction = [](int, siginfo_t* info, void*) {
    if (info->si_code != BUS_ADRERR) {
      std::signal(SIGBUS, SIG_DFL);  // any other fault: as if we were not here
      std::raise(SIGBUS);
      return;
    }
    static std::atomic_flag said;  // by one; the others wait for the end
    while (said.test_and_set()) pause();
    constexpr char kLine[] = "error: the model file changed or was truncated while in use\n";
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kLine, sizeof kLine - 1);
    _exit(1);
  };
  sigaction(SIGBUS, &action, nullptr);
}

std::string read_file(const std::string& path) {
  size_t size = 0;
  close(open_regular(path, size));
  std::ifstream in(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  check_not_lfs_pointer(text, path);
  return text;
}

}  // namespace nano
