"""The options of security: two ranks, which are threads, meet at a file, whatever the environment says."""

import array
import concurrent.futures
import os
import re
import tempfile
import unittest

import lockstep


class Security(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def secret(self, name, mode=0o600):
        """A file with a secret."""
        path = os.path.join(self.folder, name)
        with open(path, 'w', encoding='ascii') as file:
            file.write(os.urandom(32).hex() + '\n')
        os.chmod(path, mode)
        return path

    def world(self, *options):
        """What becomes of two ranks with these options: what each says of itself, or its error."""
        def become(rank):
            try:
                with lockstep.init(world_size=2, rank=rank, local_world_size=2, local_rank=rank, transport='tcp',
                                   store_url=f'file://{self.folder}/store', **options[rank]) as communicator:
                    x = array.array('f', [1])
                    communicator.all_reduce(x)
                    self.assertEqual(x[0], 2)
                    return communicator.describe()
            except lockstep.Error as error:
                return error
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            return list(pool.map(become, range(2)))

    def test_the_secret_is_that_of_the_file(self):
        path = self.secret('secret')
        for text in self.world({'secret_file': path}, {'secret_file': path}):
            self.assertIn(f'security: authenticate by a secret from secret_file={path}', text)

    def test_ranks_with_other_secrets_do_not_meet(self):
        ends = self.world(*({'secret_file': self.secret(name), 'setup_timeout_ms': 5000} for name in ('one', 'another')))
        for end in ends:
            self.assertIsInstance(end, lockstep.Error)
        self.assertIn('does not have the secret', str(ends[1]))

    def test_a_file_that_others_may_read_is_refused(self):
        path = self.secret('secret', 0o644)
        for end in self.world({'secret_file': path}, {'secret_file': path}):
            self.assertIsInstance(end, lockstep.Error)
            self.assertRegex(str(end), f'secret_file: .*{re.escape(path)}.*0644')

    def test_none_is_said(self):
        for text in self.world({'security': 'none'}, {'security': 'none'}):
            self.assertIn('security: none', text)


if __name__ == '__main__':
    unittest.main()
