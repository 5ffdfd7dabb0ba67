// Texts of options and variables: numbers, switches, words, levels, algorithms, interfaces.
//
//   input = kind:u8 text

#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/env.h"
#include "base/log.h"
#include "base/types/dtype.h"
#include "base/types/reduce_op.h"
#include "comm/select/selector.h"
#include "comm/world/world.h"
#include "comm/world/world_security.h"
#include "tests/fuzz/fuzz.h"
#include "transport/net/interface.h"
#include "transport/secure/credentials.h"

namespace lockstep {
namespace {

using Code = absl::StatusCode;

constexpr size_t kTextBytesMax = 4000;

// The environment holds this memory itself: setenv would keep a copy of every value.
char variable[kTextBytesMax + 64];

void SetVariable(absl::string_view name, absl::string_view value) {
  // A value ends at a NUL.
  const std::string text = absl::StrCat(name, "=", value);
  std::memset(variable, 0, sizeof(variable));
  std::memcpy(variable, text.data(), text.size());
  LOCKSTEP_CHECK(putenv(variable) == 0);
}

void ReadNumbers(absl::string_view text) {
  int64_t value = 0;
  if (ParseInteger(text, &value)) {
    int64_t again = 0;
    LOCKSTEP_CHECK(ParseInteger(absl::StrCat(value), &again) && again == value);
  }
  SetVariable("LOCKSTEP_CHUNK_BYTES", text);
  const auto bounded = GetEnvInt("LOCKSTEP_CHUNK_BYTES", -3, 4096);
  fuzz::CheckCode(bounded.status(), {Code::kInvalidArgument});
  if (bounded.ok() && bounded->has_value()) LOCKSTEP_CHECK(**bounded >= -3 && **bounded <= 4096);
}

void ReadLevels(absl::string_view text) {
  WorldOptions options;
  const auto read = [&options] {
    const absl::StatusOr<WorldSecurity> security = ReadSecurity(options);
    fuzz::CheckCode(security.status(), {Code::kInvalidArgument});
    return security;
  };
  for (const char* const name :
       {"LOCKSTEP_SECURITY", "LOCKSTEP_SECURITY_LOCAL", "LOCKSTEP_SECURITY_UNPROTECTED", "LOCKSTEP_SECRET_FILE"}) {
    SetVariable(name, text);
    (void)read();
  }
  SetVariable("LOCKSTEP_SECURITY", text);
  const absl::StatusOr<absl::optional<int>> level = GetEnvWord("LOCKSTEP_SECURITY", kSecurityLevelNames);
  fuzz::CheckCode(level.status(), {Code::kInvalidArgument});
  const absl::StatusOr<WorldSecurity> of_variable = read();
  LOCKSTEP_CHECK(of_variable.ok() == level.ok());
  if (level.ok() && level->has_value()) {
    LOCKSTEP_CHECK(absl::string_view(kSecurityLevelNames[**level]) == variable + std::strlen("LOCKSTEP_SECURITY="));
    LOCKSTEP_CHECK(static_cast<int>(of_variable->level) == **level);
  }
  options.security = std::string(text);
  const absl::StatusOr<WorldSecurity> of_option = read();
  if (of_option.ok() && !text.empty()) LOCKSTEP_CHECK(Name(of_option->level) == text);
}

void ReadWords(absl::string_view text) {
  SetVariable("LOCKSTEP_CHECKED", text);
  fuzz::CheckCode(GetEnvBool("LOCKSTEP_CHECKED").status(), {Code::kInvalidArgument});
  SetVariable("LOCKSTEP_LOG", text);
  fuzz::CheckCode(LogLevelOfEnvironment().status(), {Code::kInvalidArgument});
  SetVariable(absl::StrCat("LOCKSTEP_", text.substr(0, text.find_first_of(absl::string_view("=\0", 2)))), "1");
  (void)UnknownEnvironmentVariables();
  SetVariable("LOCKSTEP_LOG", "");
  const absl::StatusOr<DType> dtype = ParseDType(text);
  fuzz::CheckCode(dtype.status(), {Code::kInvalidArgument});
  if (dtype.ok()) LOCKSTEP_CHECK(Name(*dtype) == text);
  fuzz::CheckCode(ParseReduceOp(text).status(), {Code::kInvalidArgument});
  ReadLevels(text);
}

void ReadAlgorithms(absl::string_view text) {
  const absl::StatusOr<AlgorithmOverrides> overrides = ParseAlgorithmOverrides(text);
  fuzz::CheckCode(overrides.status(), {Code::kInvalidArgument});
  if (!overrides.ok()) return;
  const absl::StatusOr<AlgorithmOverrides> again = ParseAlgorithmOverrides(ToString(*overrides));
  LOCKSTEP_CHECK(again.ok() && *again == *overrides) << ToString(*overrides);
}

void ReadInterfaces(absl::string_view text) {
  std::vector<InterfaceAddress> candidates;
  for (const char* const address : {"10.0.0.7:0", "127.0.0.1:0", "169.254.1.1:0", "[fe80::1]:0", "[2001:db8::5]:0"}) {
    candidates.push_back({absl::StrCat("eth", candidates.size()), *SocketAddress::Parse(address), true});
  }
  candidates[1].name = "lo";
  for (const WorldHosts hosts : {WorldHosts::kOne, WorldHosts::kSeveral, WorldHosts::kUnknown}) {
    const absl::StatusOr<InterfaceChoice> choice = ChooseInterface(candidates, text, hosts);
    fuzz::CheckCode(choice.status(), {Code::kInvalidArgument, Code::kNotFound});
    if (choice.ok()) LOCKSTEP_CHECK(choice->rejected.size() == candidates.size() - 1);
  }
}

constexpr void (*kReaders[])(absl::string_view) = {&ReadNumbers, &ReadWords, &ReadAlgorithms, &ReadInterfaces};

}  // namespace

std::vector<std::string> fuzz::Seeds() {
  std::vector<std::string> seeds;
  const std::vector<std::vector<const char*>> texts = {
      {"0", "-3", "9223372036854775807", "+1"},
      {"on", "FALSE", "debug", "bf16", "complex64", "sum", "premul_sum", "encrypt", "none", "ofi,nccl", "ofi,"},
      {"ring", "all_reduce:recursive_doubling;broadcast:binomial", " all_reduce : ring ; "},
      {"eth", "=lo", "^docker,^=eth3", "10.0.0.0/8", "^2001:db8::/33, eth"},
  };
  for (size_t kind = 0; kind < texts.size(); ++kind) {
    for (const char* const text : texts[kind]) seeds.push_back(static_cast<char>(kind) + std::string(text));
  }
  return seeds;
}

}  // namespace lockstep

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  lockstep::fuzz::Input input(data, size);
  const auto kind = input.Take<uint8_t>();
  const absl::string_view text = input.Take(lockstep::kTextBytesMax);
  lockstep::kReaders[kind % 4](text);
  return 0;
}
