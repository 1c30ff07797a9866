"""What the test server of downloads serves, and its checksums."""

import hashlib

CONTENT = bytes(range(256)) * 5000
MD5 = "md5:" + hashlib.md5(CONTENT).hexdigest()
SHA256 = "sha256:" + hashlib.sha256(CONTENT).hexdigest()
