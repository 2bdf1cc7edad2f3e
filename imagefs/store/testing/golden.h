// Golden files: bytes of a format as an earlier build wrote them.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "base/io.h"

namespace esker::testing {

// Compares with testdata/<name>. With ESKER_UPDATE_GOLDEN set it writes the file instead: only for
// a new version of a format, never to make a failing test pass.
inline void ExpectGolden(const std::string& name, const std::string& bytes) {
  const std::string path = std::string(ESKER_TESTDATA) + "/" + name;
  if (std::getenv("ESKER_UPDATE_GOLDEN") != nullptr) {
    std::ofstream(path, std::ios::binary) << bytes;
    return;
  }
  Result<std::string> want = ReadFileToString(path);
  ASSERT_TRUE(want.ok()) << want.status().ToString();
  EXPECT_TRUE(*want == bytes) << name << " has " << want->size() << " bytes, got " << bytes.size()
                              << " that differ";
}

}  // namespace esker::testing
