// SPDX-License-Identifier: Apache-2.0
//
// Tests the way to cuBLASLt: its descriptors say what a call says, a library that multiplies in
// host memory gives the row-major products through them, and one that is missing, old, incomplete
// or fails gives its own sentence. Nothing here needs a driver or a GPU.

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/seed.h"
#include "tests/trainer/random_product.h"
#include "tools/trainer/compute/gpu/cublaslt_descriptors_cuda.h"
#include "tools/trainer/compute/gpu/cublaslt_library.h"
#include "tools/trainer/compute/gpu/cublaslt_products_cuda.h"
#include "tools/trainer/compute/gpu/product_call.h"

namespace spillway::trainer::gpu {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string Fake(const std::string& kind) {
  return absl::StrCat(SPILLWAY_FAKE_CUBLASLT, "/lib", kind, ".so");
}

// Makes each fault that the fake library knows, until the end of the scope.
struct Fault {
  explicit Fault(const char* name) { setenv("FAKE_CUBLASLT", name, 1); }
  ~Fault() { unsetenv("FAKE_CUBLASLT"); }
};

class Products : public ::testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<CublasLtProducts>> Open() {
    const absl::StatusOr<CublasLtLibrary> library = CublasLtLibrary::Load(Fake("fake_cublaslt"));
    if (!library.ok()) return library.status();
    return CublasLtProducts::Create(*library, workspace_.data());
  }

  std::vector<char> workspace_ = std::vector<char>(kProductWorkspaceBytes);
};

TEST_F(Products, AreThoseOfTheRowMajorMatrices) {
  std::mt19937_64 random(test::Seed());
  auto products = Open();
  ASSERT_TRUE(products.ok()) << products.status();
  for (int round = 0; round < 2000; ++round) {
    SCOPED_TRACE(round);
    RandomProduct made = MakeRandomProduct(random);
    const RowMajorProduct& product = made.product;
    const ProductCall call = CallOf(product).value();
    ASSERT_TRUE((*products)->Choose(call).ok());
    const absl::Status status =
        (*products)->Run(call, First(made.b, product.b), First(made.a, product.a),
                         First(made.d, product.d), nullptr);
    ASSERT_TRUE(status.ok()) << status;
    ASSERT_EQ(made.d, made.result) << Name(call);
  }
}

TEST_F(Products, NaNsInAnOverwrittenResultDoNotCount) {
  auto products = Open();
  RowMajorProduct product;
  product.a.view = product.b.view = product.d.view = {.rows = 1, .columns = 1, .stride = 1};
  const ProductCall call = CallOf(product).value();
  ASSERT_TRUE((*products)->Choose(call).ok());
  const float two = 2;
  float d = std::nanf("");
  ASSERT_TRUE((*products)->Run(call, &two, &two, &d, nullptr).ok());
  EXPECT_EQ(d, 4);
}

TEST_F(Products, HaveOneAlgorithmAShape) {
  auto products = Open();
  std::mt19937_64 random(test::Seed());
  const ProductCall call = CallOf(MakeRandomProduct(random).product).value();
  float unused = 0;
  EXPECT_EQ((*products)->Run(call, &unused, &unused, &unused, nullptr).code(),
            absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE((*products)->Choose(call).ok());
  ASSERT_TRUE((*products)->Choose(call).ok());
  ASSERT_EQ((*products)->Algorithms().size(), 1u);
  EXPECT_THAT((*products)->Algorithms()[0], HasSubstr(Name(call)));
}

TEST_F(Products, FailuresAreTold) {
  std::mt19937_64 random(test::Seed());
  const ProductCall call = CallOf(MakeRandomProduct(random).product).value();
  float unused = 0;
  {
    const Fault fault("no-driver");
    EXPECT_THAT(std::string(Open().status().message()), HasSubstr("opening"));
  }
  for (const char* const name : {"no-algorithm", "splits-sums"}) {
    const Fault fault(name);
    auto products = Open();
    const absl::Status status = (*products)->Choose(call);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << name;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("no algorithm"), HasSubstr(Name(call))));
  }
  for (const auto& [name, code] :
       {std::pair("fails", absl::StatusCode::kAborted),
        std::pair("out-of-memory", absl::StatusCode::kResourceExhausted)}) {
    const Fault fault(name);
    auto products = Open();
    ASSERT_TRUE((*products)->Choose(call).ok());
    EXPECT_EQ((*products)->Run(call, &unused, &unused, &unused, nullptr).code(), code) << name;
  }
}

TEST(CublasLtLibrary, FailuresToLoadAreTold) {
  const auto message = [](const std::string& file) {
    const absl::Status status = CublasLtLibrary::Load(file).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << file;
    return std::string(status.message());
  };
  EXPECT_THAT(message("/nowhere/libcublasLt.so"),
              AllOf(HasSubstr("/nowhere/libcublasLt.so"), HasSubstr("No such file"),
                    HasSubstr("pip install")));
  EXPECT_THAT(message("not-here.so"), HasSubstr("./not-here.so"));
  EXPECT_THAT(message(Fake("old_cublaslt")), AllOf(HasSubstr("110300"), HasSubstr("12.0")));
  EXPECT_THAT(message(Fake("incomplete_cublaslt")), HasSubstr("lacks cublasLtMatmul"));
}

// The library of this machine, if it has one. Its descriptors need no driver.
TEST(CublasLtLibrary, HasTheCallInItsOwnDescriptors) {
  const absl::StatusOr<CublasLtLibrary> library = CublasLtLibrary::Load();
  if (!library.ok()) GTEST_SKIP() << library.status().message();
  EXPECT_GE(library->version(), 120000u);
  const CublasLtApi api(*library);
  std::mt19937_64 random(test::Seed());
  for (int round = 0; round < 2000; ++round) {
    RowMajorProduct product = MakeRandomProduct(random).product;
    const DType type = std::vector{DType::kF32, DType::kF16, DType::kBF16}[random() % 3];
    product.a.view.stored = product.b.view.stored = type;
    product.d.view.stored = random() % 2 == 0 ? type : DType::kF32;
    const ProductCall call = CallOf(product).value();
    auto made = ProductDescriptors::Create(&api, call, kProductWorkspaceBytes);
    ASSERT_TRUE(made.ok()) << made.status();
    const absl::StatusOr<ProductCall> read = (*made)->ReadBack();
    ASSERT_TRUE(read.ok()) << read.status();
    ASSERT_TRUE(*read == call) << Name(call) << " is " << Name(*read);
  }
}

}  // namespace
}  // namespace spillway::trainer::gpu
