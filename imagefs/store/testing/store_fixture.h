// A store in a temporary directory, for tests here and in the rooms above.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "base/io.h"
#include "base/temp_dir.h"
#include "imagefs/store.h"

namespace esker::testing {

#define ESKER_ASSERT_OK(expr)                                              \
  do {                                                                     \
    ::esker::Status esker_test_status_ = (expr);                           \
    ASSERT_TRUE(esker_test_status_.ok()) << esker_test_status_.ToString(); \
  } while (false)
#define ESKER_EXPECT_CODE(expr, want)                                                \
  do {                                                                               \
    ::esker::Status esker_test_status_ = (expr);                                     \
    EXPECT_EQ(::esker::CodeName(esker_test_status_.code()), ::esker::CodeName(want)) \
        << esker_test_status_.ToString();                                            \
  } while (false)

class StoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Result<TempDir> dir = TempDir::Create(parent());
    ASSERT_TRUE(dir.ok()) << dir.status().ToString();
    dir_ = std::make_unique<TempDir>(std::move(*dir));
    ESKER_ASSERT_OK(Store::Initialise(path()));
    store_ = Reopen();
  }
  // No test may leave a temporary file in the store.
  void TearDown() override {
    if (dir_ == nullptr || expect_temporaries_) return;
    Result<std::vector<std::string>> left = ListDirectory(path() + "/tmp");
    ASSERT_TRUE(left.ok()) << left.status().ToString();
    EXPECT_TRUE(left->empty()) << left->size() << " temporary files are left";
  }
  // Where the temporary directory is made; "" is TempDir's own choice.
  virtual std::string parent() const { return ""; }
  std::string path() const { return dir_->path() + "/store"; }
  std::unique_ptr<Store> Reopen() const {
    Result<std::unique_ptr<Store>> store = Store::Open(path());
    EXPECT_TRUE(store.ok()) << store.status().ToString();
    return store.ok() ? std::move(*store) : nullptr;
  }

  std::unique_ptr<TempDir> dir_;
  std::unique_ptr<Store> store_;
  bool expect_temporaries_ = false;
};

}  // namespace esker::testing
