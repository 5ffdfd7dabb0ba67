"""The stubs of lockstep.torch, lockstep.jax and lockstep.lightning. Run as programs they make what the imported modules have: classes with
these bases, functions with these parameters."""

import importlib
import inspect
import pathlib
import unittest
from unittest import mock

import lockstep

FOLDER = pathlib.Path(lockstep.__file__).parent


def made_by(stub):
    """{name: function or class} of what it defines for all."""
    module = {'__name__': 'stub'}
    exec(compile(stub.read_text(encoding='utf-8'), stub, 'exec'), module)
    return {name: each for name, each in module.items() if getattr(each, '__module__', '') == 'stub' and not name.startswith('_')}


def parameters(function):
    """[(name, kind, whether it has a default, the default)]. A stub's ... is equal to every default."""
    return [(each.name, each.kind, each.default is not each.empty, mock.ANY if each.default is ... else each.default)
            for each in inspect.signature(function).parameters.values()]


class Stubs(unittest.TestCase):

    def compare(self, told, real):
        if inspect.isclass(told):
            self.assertLessEqual(set(told.__bases__), set(real.__mro__))
            for name in vars(told):
                if not name.startswith('_') or name == '__init__':
                    self.assertTrue(hasattr(real, name), name)
                    self.compare(getattr(told, name), getattr(real, name))
        elif callable(told):
            self.assertEqual(parameters(told), parameters(real))
        else:
            self.assertIs(type(told).__base__, type(real).__base__)

    def test_they_tell_what_the_modules_have(self):
        compared = set()
        for stub in FOLDER.glob('*/*.pyi'):
            path = '.'.join(('lockstep', *stub.relative_to(FOLDER).with_suffix('').parts)).removesuffix('.__init__')
            module = importlib.import_module(path)
            for name, told in made_by(stub).items():
                with self.subTest(path, name=name):
                    self.compare(told, getattr(module, name))
                    compared.add(path.split('.')[1])
        self.assertEqual(compared, {'torch', 'jax', 'lightning'})


if __name__ == '__main__':
    unittest.main()
