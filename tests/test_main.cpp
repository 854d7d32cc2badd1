// The entry point of the test binary; every other tests/test_*.cpp is one module's cases. Its last line is
// "N passed, N failed", in test cases.
#include <cstdio>

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

struct LastLine : ListenerBase {
  using ListenerBase::ListenerBase;
  void testRunEnded(Catch::TestRunStats const& stats) override {
    ListenerBase::testRunEnded(stats);
    const auto& cases = stats.totals.testCases;
    std::fflush(stdout);
    std::fprintf(stderr, "%zu passed, %zu failed\n", size_t(cases.passed), size_t(cases.failed + cases.failedButOk));
  }
};
CATCH_REGISTER_LISTENER(LastLine)

}  // namespace

int main(int argc, char** argv) { return Catch::Session().run(argc, argv); }
