// The store's protocol on both ends: requests, and what the server's dictionary makes of them; replies.
//
//   input = what:u8 stream        what is even: what a server reads, of two clients, by odd and even ids; odd: what a client reads

#include <chrono>

#include "tests/fuzz/fuzz.h"
#include "transport/store/store_service.h"
#include "transport/store/store_wire.h"

namespace lockstep {
namespace {

using Code = absl::StatusCode;

constexpr size_t kServiceBytesMax = 512;

// What was parsed lies in the input; an error has a text.
void CheckParsed(const fuzz::Allocations& allocations, const absl::Status& status) {
  LOCKSTEP_CHECK(allocations.bytes() <= (status.ok() ? 0 : 1024)) << allocations.bytes() << " bytes allocated";
}

void CheckAnswer(const StoreService::Answer& answer) {
  fuzz::CheckCode(answer.status, {Code::kNotFound, Code::kResourceExhausted});
  LOCKSTEP_CHECK(answer.client <= 1) << "an answer to nobody";
  StoreReply reply;
  reply.id = answer.request;
  reply.code = answer.status.code();
  const std::string message(answer.status.message());
  reply.body = answer.status.ok() ? absl::string_view(*answer.body) : message;
  const std::string bytes = EncodeStoreReply(reply);
  StoreReply again;
  const absl::StatusOr<size_t> taken = ParseStoreReply(bytes, &again);
  LOCKSTEP_CHECK(taken.ok() && *taken == bytes.size() && again.id == reply.id && again.code == reply.code &&
                 again.body == reply.body);
}

void Serve(absl::string_view input) {
  StoreService service(kServiceBytesMax);
  StoreService::TimePoint now{};
  for (uint64_t number = 0; !input.empty(); ++number) {
    StoreRequest request;
    const fuzz::Allocations parsing;
    const absl::StatusOr<size_t> taken = ParseStoreRequest(input, &request);
    CheckParsed(parsing, taken.status());
    fuzz::CheckCode(taken.status(), {Code::kInvalidArgument});
    if (!taken.ok() || *taken == 0) break;
    LOCKSTEP_CHECK(*taken <= input.size());
    LOCKSTEP_CHECK(request.key.size() <= kStoreKeyBytesMax && request.first.size() <= kStoreValueBytesMax &&
                   request.second.size() <= kStoreValueBytesMax);
    LOCKSTEP_CHECK(EncodeStoreRequest(request) == input.substr(0, *taken)) << "not what was parsed";
    const uint64_t client = request.id % 2;
    const size_t waited = service.waits(0) + service.waits(1);
    std::vector<StoreService::Answer> answers;
    const fuzz::Allocations allocations;
    service.CarryOut(client, request, now, &answers);
    // Each answer has a copy of the value.
    LOCKSTEP_CHECK(allocations.bytes() <= 4 * (answers.size() + 1) * (*taken + kServiceBytesMax) + 4096)
        << allocations.bytes() << " bytes allocated for " << *taken;
    for (const StoreService::Answer& answer : answers) CheckAnswer(answer);
    LOCKSTEP_CHECK(answers.size() + service.waits(0) + service.waits(1) == waited + 1)
        << "a request is answered once, or waits";
    LOCKSTEP_CHECK(service.anyone_waits() == (service.waits(0) + service.waits(1) > 0));
    now += std::chrono::milliseconds(1);
    if (number % 8 == 7) service.DropExpired(now);
    if (number % 16 == 15) service.Forget(client);
    input.remove_prefix(*taken);
  }
  service.Forget(0);
  service.Forget(1);
  LOCKSTEP_CHECK(!service.anyone_waits());
}

void ReadReplies(absl::string_view input) {
  while (!input.empty()) {
    StoreReply reply;
    const fuzz::Allocations parsing;
    const absl::StatusOr<size_t> taken = ParseStoreReply(input, &reply);
    CheckParsed(parsing, taken.status());
    fuzz::CheckCode(taken.status(), {Code::kInvalidArgument});
    if (!taken.ok() || *taken == 0) return;
    LOCKSTEP_CHECK(*taken <= input.size() && reply.body.size() <= kStoreValueBytesMax);
    LOCKSTEP_CHECK(EncodeStoreReply(reply) == input.substr(0, *taken)) << "not what was parsed";
    input.remove_prefix(*taken);
  }
}

StoreRequest Request(uint64_t id, StoreOp op, absl::string_view first = "", absl::string_view second = "") {
  StoreRequest request;
  request.id = id;
  request.op = op;
  request.timeout_ms = 5;
  request.key = "key";
  request.first = first;
  request.second = second;
  return request;
}

}  // namespace

std::vector<std::string> fuzz::Seeds() {
  std::string requests(1, '\0');
  for (const StoreRequest& request :
       {Request(1, StoreOp::kWait), Request(2, StoreOp::kSet, "value"), Request(3, StoreOp::kGet),
        Request(4, StoreOp::kCompareAndSet, "value", "another"), Request(5, StoreOp::kDelete),
        Request(6, StoreOp::kGet), Request(7, StoreOp::kWait)}) {
    requests += EncodeStoreRequest(request);
  }
  const std::string replies =
      '\1' + EncodeStoreReply({1, Code::kOk, "value"}) + EncodeStoreReply({3, Code::kNotFound, "key"});
  return {requests, replies};
}

}  // namespace lockstep

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  lockstep::fuzz::Input input(data, size);
  const bool server = input.Take<uint8_t>() % 2 == 0;
  server ? lockstep::Serve(input.Rest()) : lockstep::ReadReplies(input.Rest());
  return 0;
}
