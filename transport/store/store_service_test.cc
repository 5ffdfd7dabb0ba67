#include "transport/store/store_service.h"

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/store_conformance.h"
#include "transport/store/store_memory.h"
#include "transport/store/store_wire.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// ---- The dictionary. What the operations mean is tested through every store, by tests/store_conformance.h.

TEST(StoreMap, MoreKeysAndValuesThanItMayHoldAreResourceExhausted) {
  const size_t most = 2 * StoreBytes("", "") + 10;
  StoreMap map(most);
  ASSERT_THAT(map.Set("key", "1234"), IsOk());
  ASSERT_THAT(map.Set("n", "12"), IsOk());
  const auto full = StatusIs(absl::StatusCode::kResourceExhausted,
                             HasSubstr(absl::StrCat("at most ", most, " bytes and has ", most)));
  EXPECT_THAT(map.Set("key", "12345"), full);
  EXPECT_THAT(map.Set("", ""), full);
  EXPECT_THAT(map.Perform({StoreOp::kCompareAndSet, "n", "12", "123"}), full);
  EXPECT_EQ(*map.Find("key"), "1234");
  // Replacing and deleting count what they free.
  EXPECT_THAT(map.Set("key", "4321"), IsOk());
  EXPECT_THAT(map.Set("key", "1"), IsOk());
  EXPECT_THAT(map.Perform({StoreOp::kCompareAndSet, "n", "12", "12345"}),
              IsOkAndHolds(testing::Optional(std::string("12345"))));
  map.Delete("key");
  map.Delete("key");
  EXPECT_THAT(map.Set("123", "4"), IsOk());
  EXPECT_THAT(map.Set("", ""), full);
}

TEST(DescribeStoreKey, EscapesAndCutsShort) {
  EXPECT_EQ(DescribeStoreKey("rank0"), "key 'rank0'");
  EXPECT_EQ(DescribeStoreKey(std::string("a\0\n", 3)), "key 'a\\x00\\n'");
  EXPECT_THAT(DescribeStoreKey(std::string(500, 'k')), AllOf(HasSubstr("kkk...'"), HasSubstr("(500 bytes)")));
  EXPECT_LT(DescribeStoreKey(std::string(500, 'k')).size(), 110);
}

// The clients of a memory store are one object.
StoreWorld MemoryWorld() {
  return {[store = std::make_shared<MemoryStore>()] { return store; }};
}

INSTANTIATE_TEST_SUITE_P(Memory, StoreConformance, testing::Values(StoreWorldFactory(MemoryWorld)));

// ---- The service.

// Single operations are tested through the stores, by tests/store_conformance.h; this is about who is answered when.
class StoreServiceTest : public testing::Test {
 protected:
  StoreRequest Request(StoreOp op, absl::string_view key, absl::string_view first = "") {
    return {{op, key, first}, ++last_id_, kStoreNoTimeout};
  }

  // "client.request=body" or "client.request!CODE" for each answer, in order.
  std::vector<std::string> CarryOut(uint64_t client, const StoreRequest& request) {
    std::vector<StoreService::Answer> answers;
    service_.CarryOut(client, request, now_, &answers);
    std::vector<std::string> texts;
    for (const auto& answer : answers) {
      texts.push_back(std::to_string(answer.client) + "." + std::to_string(answer.request) +
                      (answer.status.ok() ? "=" + *answer.body : "!" + absl::StatusCodeToString(answer.status.code())));
    }
    return texts;
  }

  StoreService service_{1 << 20};
  StoreService::TimePoint now_ = StoreService::TimePoint(std::chrono::hours(1));
  uint64_t last_id_ = 0;
};

TEST_F(StoreServiceTest, ASetAnswersItselfAndEveryoneWhoWaitedForTheKey) {
  EXPECT_THAT(CarryOut(7, Request(StoreOp::kWait, "k")), IsEmpty());
  EXPECT_THAT(CarryOut(8, Request(StoreOp::kWait, "k")), IsEmpty());
  EXPECT_THAT(CarryOut(8, Request(StoreOp::kWait, "other")), IsEmpty());
  EXPECT_THAT(CarryOut(9, Request(StoreOp::kSet, "k", "v")), ElementsAre("9.4=", "7.1=v", "8.2=v"));
  EXPECT_EQ(service_.waits(7), 0);
  EXPECT_EQ(service_.waits(8), 1);
  // Answered once.
  EXPECT_THAT(CarryOut(9, Request(StoreOp::kSet, "k", "w")), ElementsAre("9.5="));
  EXPECT_THAT(CarryOut(7, Request(StoreOp::kWait, "k")), ElementsAre("7.6=w"));
}

TEST_F(StoreServiceTest, ARequestThatSetsNothingEndsNoWait) {
  EXPECT_THAT(CarryOut(7, Request(StoreOp::kWait, "k")), IsEmpty());
  StoreRequest swap = Request(StoreOp::kCompareAndSet, "k", "not this");
  swap.second = "v";
  EXPECT_THAT(CarryOut(8, swap), ElementsAre("8.2="));
  EXPECT_THAT(CarryOut(8, Request(StoreOp::kDelete, "k")), ElementsAre("8.3="));
  EXPECT_THAT(CarryOut(8, Request(StoreOp::kGet, "k")), ElementsAre("8.4!NOT_FOUND"));
  EXPECT_EQ(service_.waits(7), 1);
}

TEST_F(StoreServiceTest, WaitsLeaveWithTheirClient) {
  EXPECT_THAT(CarryOut(7, Request(StoreOp::kWait, "k")), IsEmpty());
  EXPECT_THAT(CarryOut(8, Request(StoreOp::kWait, "k")), IsEmpty());
  EXPECT_THAT(CarryOut(7, Request(StoreOp::kWait, "only")), IsEmpty());
  service_.Forget(7);
  service_.Forget(7);
  EXPECT_EQ(service_.waits(7), 0);
  EXPECT_THAT(CarryOut(9, Request(StoreOp::kSet, "k", "v")), ElementsAre("9.4=", "8.2=v"));
  EXPECT_FALSE(service_.anyone_waits());
}

TEST_F(StoreServiceTest, WaitsExpireWithoutAnAnswer) {
  StoreRequest brief = Request(StoreOp::kWait, "k");
  brief.timeout_ms = 100;
  EXPECT_THAT(CarryOut(7, brief), IsEmpty());
  EXPECT_THAT(CarryOut(8, Request(StoreOp::kWait, "k")), IsEmpty());
  now_ += std::chrono::milliseconds(99);
  service_.DropExpired(now_);
  EXPECT_EQ(service_.waits(7), 1);
  now_ += std::chrono::milliseconds(1);
  service_.DropExpired(now_);
  EXPECT_EQ(service_.waits(7), 0);
  now_ += std::chrono::hours(24 * 365);
  service_.DropExpired(now_);
  EXPECT_EQ(service_.waits(8), 1);
}

// Else a value would be there once for each of a hundred thousand waits.
TEST_F(StoreServiceTest, AllWhoWaitedForAKeyShareItsValue) {
  for (uint64_t client = 1; client <= 3; ++client)
    ASSERT_THAT(CarryOut(client, Request(StoreOp::kWait, "k")), IsEmpty());
  std::vector<StoreService::Answer> answers;
  service_.CarryOut(4, Request(StoreOp::kSet, "k", "v"), now_, &answers);
  ASSERT_EQ(answers.size(), 4);
  EXPECT_EQ(*answers[1].body, "v");
  EXPECT_EQ(answers[2].body, answers[1].body);
  EXPECT_EQ(answers[3].body, answers[1].body);
}

TEST(StoreService, WaitsOfAllClientsAreBoundedAsTheStoreIs) {
  const std::string key(100, 'k');
  StoreService service(10 * StoreBytes(key, ""));
  const auto carry_out = [&](uint64_t client, StoreOp op) {
    StoreRequest request;
    request.op = op;
    request.key = key;
    request.timeout_ms = 100;
    std::vector<StoreService::Answer> answers;
    service.CarryOut(client, request, {}, &answers);
    return answers;
  };
  // They are freed in each of the three ways.
  for (int round = 0; round < 3; ++round) {
    for (uint64_t client = 1; client <= 10; ++client) ASSERT_THAT(carry_out(client, StoreOp::kWait), IsEmpty());
    const std::vector<StoreService::Answer> refused = carry_out(11, StoreOp::kWait);
    ASSERT_EQ(refused.size(), 1);
    EXPECT_THAT(refused[0].status, StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("under way already")));
    if (round == 0) {
      EXPECT_EQ(carry_out(11, StoreOp::kSet).size(), 11);
      (void)carry_out(11, StoreOp::kDelete);
    } else if (round == 1) {
      for (uint64_t client = 1; client <= 10; ++client) service.Forget(client);
    } else {
      service.DropExpired(StoreService::TimePoint() + std::chrono::seconds(1));
      EXPECT_FALSE(service.anyone_waits());
    }
  }
}

TEST_F(StoreServiceTest, WaitsOfOneClientAreBounded) {
  for (int i = 0; i < 4096; ++i) ASSERT_THAT(CarryOut(7, Request(StoreOp::kWait, "k")), IsEmpty());
  EXPECT_THAT(CarryOut(7, Request(StoreOp::kWait, "k")), ElementsAre(HasSubstr("!RESOURCE_EXHAUSTED")));
  EXPECT_THAT(CarryOut(8, Request(StoreOp::kWait, "k")), IsEmpty());
}

}  // namespace
}  // namespace lockstep
