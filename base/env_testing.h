#ifndef BASE_ENV_TESTING_H_
#define BASE_ENV_TESTING_H_

#include <stdlib.h>

#include <string>

#include "absl/types/optional.h"
#include "base/env.h"

namespace lockstep {

// Sets a variable of the environment for the time of a scope, or unsets it, for null. Used while the test has one thread.
class ScopedVariable {
 public:
  ScopedVariable(const char* name, const char* value) : name_(name), before_(GetEnv(name)) { Set(value); }
  ScopedVariable(const char* name, const std::string& value) : ScopedVariable(name, value.c_str()) {}
  ~ScopedVariable() { Set(before_.has_value() ? before_->c_str() : nullptr); }
  ScopedVariable(const ScopedVariable&) = delete;
  ScopedVariable& operator=(const ScopedVariable&) = delete;

  void Set(const char* value) {
    if (value == nullptr) {
      unsetenv(name_);
    } else {
      setenv(name_, value, /*overwrite=*/1);
    }
  }

 private:
  const char* const name_;
  const absl::optional<std::string> before_;
};

}  // namespace lockstep

#endif  // BASE_ENV_TESTING_H_
