// The entry point of the test binary; every other tests/test_*.cpp is one module's cases. Its last line is
// "N passed, N failed", in test cases.
#include <cstdio>
#include <iostream>

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_session.hpp>
#include <catch2/reporters/catch_reporter_event_listener.hpp>
#include <catch2/reporters/catch_reporter_registrars.hpp>
using ListenerBase = Catch::EventListenerBase;
#else
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>
using ListenerBase = Catch::TestEventListenerBase;
#endif

namespace {

Catch::Counts last_counts;

struct LastLine : ListenerBase {
  using ListenerBase::ListenerBase;
  void testRunEnded(Catch::TestRunStats const& stats) override {
    ListenerBase::testRunEnded(stats);
    last_counts = stats.totals.testCases;
  }
};
CATCH_REGISTER_LISTENER(LastLine)

}  // namespace

int main(int argc, char** argv) {
  const int status = Catch::Session().run(argc, argv);
  std::cout << std::flush;  // the reporter's summary comes first
  std::printf("%zu passed, %zu failed\n", size_t(last_counts.passed),
              size_t(last_counts.failed + last_counts.failedButOk));
  return status;
}
