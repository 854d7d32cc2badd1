// Catch2, version 2 or 3, whichever the system has. Tests use TEST_CASE, SECTION, CHECK, REQUIRE, CHECK_THROWS_*,
// INFO and CAPTURE only: these are the same in both.
#pragma once

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
#else
#include <catch2/catch.hpp>
#endif

#include <string>

#include "base/error.h"  // Error

// The message of the nano::Error that fn throws; "" if it throws none. (Catch2's string matchers have other names
// in version 3.)
template <class Function>
std::string error_of(const Function& fn) {
  try {
    fn();
  } catch (const nano::Error& error) {
    return error.what();
  }
  return "";
}
