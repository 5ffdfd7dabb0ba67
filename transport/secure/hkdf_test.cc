#include "transport/secure/hkdf.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <string>

#include "gtest/gtest.h"

namespace lockstep {
namespace {

// RFC 5869, 2.3, word for word: T(i) = HMAC-Hash(PRK, T(i-1) | info | i).
std::string Reference(const std::string& key, const std::string& label, size_t bytes) {
  std::string all;
  std::string last;
  for (char i = 1; all.size() < bytes; ++i) {
    const std::string input = last + label + i;
    unsigned char digest[48];
    HMAC(EVP_sha384(), key.data(), static_cast<int>(key.size()), reinterpret_cast<const unsigned char*>(input.data()),
         input.size(), digest, nullptr);
    last.assign(reinterpret_cast<const char*>(digest), sizeof(digest));
    all += last;
  }
  return all.substr(0, bytes);
}

TEST(HkdfTest, IsThatOfTheRfc) {
  const std::string key(48, 'k');
  for (const size_t bytes : {1, 12, 32, 48, 49, 200}) {
    for (const std::string label : {"x", "a label"}) {
      std::string out(bytes, '\0');
      HkdfExpand(key, label, &out[0], bytes);
      EXPECT_EQ(out, Reference(key, label, bytes)) << bytes << label;
    }
  }
}

}  // namespace
}  // namespace lockstep
