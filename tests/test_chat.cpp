// `build/nano chat`: scripted, and on a terminal of its own (editing, history, Ctrl-C).
#include <csignal>
#include <cstdlib>
#include <string>

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include "catch.h"       // Catch2, version 2 or 3
#include "subprocess.h"  // run_nano, temporary_file

using nano_test::contains;
using nano_test::run_nano;
using nano_test::temporary_file;
using nano_test::tiny;

namespace {

const char* const kTemplate = "{% for m in messages %}{{ m['content'] }} {% endfor %}";

std::vector<std::string> chat_args(const std::string& template_file) {
  return {"chat",
          tiny(),
          "--device",
          "ref",
          "--chat-template",
          template_file,
          "--max-tokens",
          "3",
          "--temperature",
          "0",
          "--ignore-eos",
          "--no-stats",
          "--kv-cache-memory-bytes",
          "16MB"};
}

// The binary with a terminal as stdin, stdout and stderr.
class OnTerminal {
 public:
  explicit OnTerminal(const std::vector<std::string>& args) {
    std::vector<std::string> command = {nano_test::nano_binary()};
    command.insert(command.end(), args.begin(), args.end());
    std::vector<char*> argv;
    for (std::string& arg : command) argv.push_back(arg.data());
    argv.push_back(nullptr);
    fd_ = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    REQUIRE((fd_ >= 0 && grantpt(fd_) == 0 && unlockpt(fd_) == 0));
    const std::string name = ptsname(fd_);
    std::fflush(nullptr);
    child_ = fork();
    if (child_ == 0) {
      setsid();
      const int terminal = open(name.c_str(), O_RDWR);
      ioctl(terminal, TIOCSCTTY, 0);
      for (int fd = 0; fd <= 2; ++fd) dup2(terminal, fd);
      setenv("TERM", "xterm", 1);
      setenv("NO_COLOR", "1", 1);
      std::signal(SIGINT, SIG_DFL);
      execv(argv[0], argv.data());
      _exit(127);
    }
  }
  ~OnTerminal() {
    if (child_ > 0) kill(child_, SIGKILL), waitpid(child_, nullptr, 0);
    close(fd_);
  }

  // Once the line is being edited: what comes before that, the terminal itself takes for a whole line.
  void type(const std::string& keys) {
    termios mode = {};
    for (int i = 0; i < 3000 && (tcgetattr(fd_, &mode) != 0 || (mode.c_lflag & ICANON)); ++i) usleep(10'000);
    REQUIRE(write(fd_, keys.data(), keys.size()) == ssize_t(keys.size()));
  }
  // Reads until `text` has come, which then counts as read; false after 30 s, or at the end.
  bool shows(const std::string& text) {
    for (;;) {
      if (const size_t at = seen_.find(text); at != std::string::npos) {
        seen_.erase(0, at + text.size());
        return true;
      }
      pollfd one = {fd_, POLLIN, 0};
      char bytes[4096];
      if (poll(&one, 1, 30'000) <= 0) return false;
      const ssize_t n = read(fd_, bytes, sizeof bytes);
      if (n <= 0) return false;
      seen_.append(bytes, size_t(n));
    }
  }
  int exit_code() {
    shows("there is no such text: read to the end");
    int status = 0;
    for (int i = 0; i < 100 && waitpid(child_, &status, WNOHANG) == 0; ++i) {
      usleep(50'000);
      if (i == 90) kill(child_, SIGKILL);
    }
    child_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  const std::string& unread() const { return seen_; }

 private:
  int fd_ = -1;
  pid_t child_ = -1;
  std::string seen_;
};

}  // namespace

TEST_CASE("a scripted chat repeats the questions, so that what it writes can be read") {
  const std::string source = temporary_file(kTemplate);
  const auto ran = run_nano(chat_args(source), "And God said\n\n/reset\n/bye\nnever\n");
  INFO(ran.out << ran.err);
  CHECK(ran.exit_code == 0);
  CHECK(ran.out.rfind("> And God said\n", 0) == 0);
  CHECK(contains(ran.out, "\n> /reset\n> /bye\n"));
  CHECK(!contains(ran.out, "never"));
  std::remove(source.c_str());
}

TEST_CASE("a question may begin with a slash: it is written with two") {
  const std::string source = temporary_file("{{ raise_exception('got ' + messages[0]['content']) }}");
  const auto ran = run_nano(chat_args(source), "//etc/hosts\n///\n/etc/hosts\n");
  INFO(ran.err);
  CHECK(ran.exit_code == 1);
  CHECK(contains(ran.err, "got /etc/hosts"));
  CHECK(contains(ran.err, "got //"));
  CHECK(contains(
      ran.err, "'/etc/hosts' is not a command (/help lists them; a question that begins with / is written"));
  std::remove(source.c_str());
}

TEST_CASE("on a terminal a line can be edited, and the last one comes back") {
  const std::string source = temporary_file(kTemplate);
  const std::string piped = run_nano(chat_args(source), "And God said unto Moses\n").out;
  const std::string answer = piped.substr(piped.find('\n') + 1, piped.rfind('\n') - piped.find('\n') - 1);
  REQUIRE(answer.size() > 3);
  OnTerminal chat(chat_args(source));
  REQUIRE(chat.shows("> "));
  chat.type(
      "God said unto Mosesx\x7f\x01"
      "And \r");  // Backspace at the end; Ctrl-A to the beginning
  CHECK(chat.shows(answer));
  CHECK(chat.shows("> "));
  chat.type("/n\xc3\xa9\x7f\r");  // one Backspace for an é of two bytes
  CHECK(chat.shows("'/n' is not a command"));
  CHECK(chat.shows("> "));
  chat.type("\x1b[A\x1b[Do\r");  // up: the last line; left: before its n
  CHECK(chat.shows("'/on' is not a command"));
  CHECK(chat.shows("> "));
  chat.type("/half\xc3\r");  // the first byte of an é: passed over, and the line ends all the same
  CHECK(chat.shows("'/half' is not a command"));
  CHECK(chat.shows("> "));
  chat.type("/\xc3\xa9\r");
  CHECK(chat.shows("'/\xc3\xa9' is not a command"));
  chat.type("/bye\r");
  CHECK(chat.exit_code() == 0);
  std::remove(source.c_str());
}

TEST_CASE("at the prompt two Ctrl-C leave, one does not; Ctrl-D does") {
  const std::string source = temporary_file(kTemplate);
  OnTerminal chat(chat_args(source));
  REQUIRE(chat.shows("> "));
  for (const char* between : {"/help\r", "\r"}) {
    chat.type("half a line\x03");
    CHECK(chat.shows("Ctrl-C once more leaves"));
    CHECK(chat.shows("> "));
    chat.type(between);
    CHECK(chat.shows("> "));
  }
  chat.type("\x03");
  CHECK(chat.shows("Ctrl-C once more leaves"));
  CHECK(chat.shows("> "));
  chat.type("\x03");
  CHECK(chat.exit_code() == 0);

  OnTerminal other(chat_args(source));
  REQUIRE(other.shows("> "));
  other.type("\x04");
  CHECK(other.exit_code() == 0);
  std::remove(source.c_str());
}
