// The C ABI where tensors travel by NCCL: options that reach it, and its own communicator, handed out. Ranks are threads, CUDA is one
// in memory, and NCCL a fake.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/deadline.h"
#include "base/device/device.h"
#include "base/status_matchers.h"
#include "capi/lockstep.h"
#include "comm/device/nccl/nccl_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/gate.h"
#include "tests/ranks.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

constexpr int kRanks = 2;
constexpr int64_t kElements = 1000;

// What the error says, which is freed; empty for none.
std::string Text(lockstep_error* error) {
  if (error == nullptr) return "";
  const std::string text = lockstep_error_message(error);
  lockstep_error_free(error);
  return text;
}

class CApiNccl : public NcclTest {
 protected:
  // Options of one rank of a world that meets in a file of this test's.
  static lockstep_communicator_options Options(int rank, const std::string& store) {
    lockstep_communicator_options options;
    LOCKSTEP_INIT(options);
    options.world_size = kRanks;
    options.rank = rank;
    options.local_world_size = kRanks;
    options.local_rank = rank;
    options.store_url = store.c_str();
    options.device_kind = LOCKSTEP_CUDA;
    options.device_backend = "nccl";
    return options;
  }
  static std::string Store(const std::string& name) { return absl::StrCat("file://", ::testing::TempDir(), "/", name); }
};

TEST_F(CApiNccl, OptionsReachItAndItsCommunicatorIsHandedOut) {
  const std::string store = Store("options");
  Gate has_its_sum[kRanks];
  lockstep::testing::RunRanks(kRanks, [&](int rank) {
    lockstep_communicator_options options = Options(rank, store);
    options.nccl_ctas_min = 2;
    options.nccl_ctas_max = 5;
    options.nccl_split_share = 1;
    lockstep_communicator* communicator = nullptr;
    ASSERT_EQ(Text(lockstep_communicator_create(&options, &communicator)), "");

    void* comm = nullptr;
    EXPECT_EQ(Text(lockstep_communicator_nccl(communicator, &comm)), "");
    EXPECT_NE(comm, nullptr);
    EXPECT_THAT(Text(lockstep_communicator_nccl(communicator, nullptr)), HasSubstr("out_comm"));
    EXPECT_THAT(Text(lockstep_communicator_nccl(nullptr, &comm)), HasSubstr("communicator"));

    // And it carries out what it is asked for.
    void* memory = nullptr;
    Device* const device = NcclFakes::Get().device;
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(memory, device->AllocateOnHost(kElements * sizeof(float)));
    auto* const values = static_cast<float*>(memory);
    for (int64_t i = 0; i < kElements; ++i) values[i] = static_cast<float>(i + rank);
    lockstep_tensor tensor;
    std::memset(&tensor, 0, sizeof(tensor));
    tensor.data = memory;
    tensor.shape = &kElements;
    tensor.dimensions = 1;
    tensor.dtype = LOCKSTEP_F32;
    tensor.device_kind = LOCKSTEP_CUDA;
    EXPECT_EQ(Text(lockstep_all_reduce(communicator, &tensor, &tensor, LOCKSTEP_SUM, nullptr, nullptr, nullptr)), "");
    for (int64_t i = 0; i < kElements; ++i) ASSERT_EQ(values[i], 2 * i + 1) << i;
    device->FreeOnHost(memory);
    // An abort would be the result of a rank that still waits for its own.
    has_its_sum[rank].Open();
    EXPECT_THAT(has_its_sum[1 - rank].Await(Deadline::AfterMs(60'000)), IsOk());

    EXPECT_EQ(Text(lockstep_communicator_abort(communicator, "enough")), "");
    EXPECT_THAT(Text(lockstep_communicator_nccl(communicator, &comm)), HasSubstr("enough"));
    lockstep_communicator_destroy(communicator);
  });
  const auto config = NcclFakes::Get().nccl->last_config();
  EXPECT_EQ(config.min_ctas, 2);
  EXPECT_EQ(config.max_ctas, 5);
  EXPECT_EQ(config.split_share, 1);
}

// The calls of a list on the device, and one call of a list on the host, whose memory checked mode looks at piece by piece.
TEST_F(CApiNccl, ListsOfTensors) {
  const std::string store = Store("lists");
  constexpr size_t kTensors = 3;
  Gate done[kRanks];
  lockstep::testing::RunRanks(kRanks, [&](int rank) {
    lockstep_communicator_options options = Options(rank, store);
    options.checked = 1;
    lockstep_communicator* communicator = nullptr;
    ASSERT_EQ(Text(lockstep_communicator_create(&options, &communicator)), "");
    Device* const device = NcclFakes::Get().device;
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Stream> own, device->CreateStream("lists"));
    const lockstep_stream stream = {own->native(), LOCKSTEP_CUDA, 0};
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(void* const memory, device->AllocateOnHost(2 * kTensors * kElements * sizeof(float)));
    auto* const values = static_cast<float*>(memory);
    lockstep_tensor list[kTensors];
    const auto make = [&](lockstep_device_kind kind) {
      for (size_t i = 0; i < kTensors; ++i) {
        float* const data = values + 2 * i * kElements;
        std::fill(data, data + kElements, static_cast<float>(rank + i));
        list[i] = {data, &kElements, nullptr, 1, LOCKSTEP_F32, kind, 0};
      }
    };
    const auto all_reduce = [&](const lockstep_stream* on, lockstep_work** work) {
      return Text(lockstep_all_reduce_coalesced(communicator, list, list, kTensors, LOCKSTEP_SUM, nullptr, on, work));
    };
    const auto expect_sums = [&] {
      for (size_t i = 0; i < kTensors; ++i) EXPECT_EQ(values[2 * i * kElements + kElements - 1], 2 * i + 1) << i;
    };
    const auto records = [&] {
      char* text = nullptr;
      EXPECT_EQ(Text(lockstep_communicator_flight_records(communicator, &text)), "");
      const std::string all = text;
      lockstep_string_free(text);
      int found = 0;
      for (size_t at = 0; (at = all.find("all_reduce", at)) != std::string::npos; ++at) ++found;
      return found;
    };
    lockstep_work* work = nullptr;

    make(LOCKSTEP_CUDA);
    EXPECT_EQ(all_reduce(nullptr, nullptr), "");
    expect_sums();
    EXPECT_EQ(records(), kTensors);
    make(LOCKSTEP_CUDA);
    EXPECT_EQ(all_reduce(nullptr, &work), "");
    EXPECT_EQ(Text(lockstep_work_wait(work, 60'000)), "");
    lockstep_work_destroy(work);
    expect_sums();
    make(LOCKSTEP_CUDA);
    EXPECT_EQ(all_reduce(&stream, nullptr), "");
    EXPECT_THAT(own->Synchronize(Deadline::AfterMs(60'000)), IsOk());
    expect_sums();
    make(LOCKSTEP_CUDA);
    EXPECT_EQ(Text(lockstep_group_start(communicator)), "");
    EXPECT_EQ(all_reduce(nullptr, nullptr), "");
    EXPECT_EQ(values[0], rank);
    EXPECT_EQ(Text(lockstep_group_end(communicator, nullptr)), "");
    expect_sums();
    EXPECT_EQ(Text(lockstep_broadcast_coalesced(communicator, nullptr, 0, 0, nullptr, &stream, nullptr)), "");

    const int before = records();
    make(LOCKSTEP_HOST);
    EXPECT_EQ(all_reduce(nullptr, nullptr), "");
    expect_sums();
    EXPECT_EQ(records(), before + 1);
    EXPECT_THAT(all_reduce(&stream, nullptr), HasSubstr("the buffers are on host, and the stream is cuda:0"));
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(void* const on_device, device->Allocate(kElements * sizeof(float)));
    list[1].data = on_device;
    EXPECT_THAT(all_reduce(nullptr, nullptr), HasSubstr("is memory of cuda:0, but host was declared"));
    device->Free(on_device);
    device->FreeOnHost(memory);
    // An abort would be the result of a rank that still waits for its own.
    done[rank].Open();
    EXPECT_THAT(done[1 - rank].Await(Deadline::AfterMs(60'000)), IsOk());
    lockstep_communicator_destroy(communicator);
  });
}

TEST_F(CApiNccl, OptionsThatMakeNoSenseAreRefused) {
  const std::string store = Store("refused");
  lockstep_communicator* communicator = nullptr;
  lockstep_communicator_options options = Options(0, store);
  options.nccl_ctas_min = 5;
  options.nccl_ctas_max = 2;
  EXPECT_THAT(Text(lockstep_communicator_create(&options, &communicator)),
              HasSubstr("nccl_ctas_min is 5 and nccl_ctas_max is 2"));
  options.nccl_ctas_max = -1;
  EXPECT_THAT(Text(lockstep_communicator_create(&options, &communicator)), HasSubstr("nccl_ctas_max is -1"));
}

TEST_F(CApiNccl, OtherBackEndsHaveNoneToHandOut) {
  const std::string store = Store("staged");
  lockstep::testing::RunRanks(kRanks, [&](int rank) {
    lockstep_communicator_options options = Options(rank, store);
    options.device_backend = "staged";
    lockstep_communicator* communicator = nullptr;
    ASSERT_EQ(Text(lockstep_communicator_create(&options, &communicator)), "");
    void* comm = nullptr;
    EXPECT_THAT(Text(lockstep_communicator_nccl(communicator, &comm)), HasSubstr("do not travel by NCCL"));
    lockstep_communicator_destroy(communicator);
  });
}

}  // namespace
}  // namespace lockstep
