"""Type stubs and code have the same names and parameters."""

import ast
import pathlib
import unittest

import lockstep
from lockstep._native import ffi

FOLDER = pathlib.Path(lockstep.__file__).parent
EXTENSIONS = ['_native.pyi']  # of a module that is no Python


def is_public(name):
    return not name.startswith('_') or name in ('__init__', '__version__')


def parameters(function):
    """[(name, kind, whether it has a default)]"""
    given = function.args
    positional = given.posonlyargs + given.args
    with_default = len(positional) - len(given.defaults)
    found = [(each.arg, 'positional', i >= with_default) for i, each in enumerate(positional)]
    found += [(each.arg, 'keyword', default is not None) for each, default in zip(given.kwonlyargs, given.kw_defaults)]
    found += [(each.arg, kind, False) for each, kind in ((given.vararg, '*'), (given.kwarg, '**')) if each is not None]
    return found


def names(body):
    """{public name: what it is} of a module or a class. Attributes that methods assign are not looked for."""
    found = {}
    for node in body:
        if isinstance(node, ast.FunctionDef) and is_public(node.name):
            is_property = any(getattr(each, 'id', '') == 'property' for each in node.decorator_list)
            found[node.name] = 'property' if is_property else ('function', parameters(node))
        elif isinstance(node, ast.ClassDef) and is_public(node.name):
            found[node.name] = ('class', [ast.unparse(base) for base in node.bases], names(node.body))
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                for each in getattr(target, 'elts', [target]):
                    if isinstance(each, ast.Name) and is_public(each.id):
                        found[each.id] = 'value'
        elif isinstance(node, ast.AnnAssign) and is_public(node.target.id):
            found[node.target.id] = 'value'
    return found


def of_file(path):
    tree = ast.parse(path.read_text(encoding='utf-8'), feature_version=(3, 10))
    return names(tree.body)


def passed_on(path):
    """Names of this package's that a file imports for those who import it: not what it imports as _NAME."""
    return {each.name for node in ast.parse(path.read_text(encoding='utf-8')).body
            if isinstance(node, ast.ImportFrom) and node.module.startswith('lockstep')
            for each in node.names if not (each.asname or '').startswith('_')}


def without_values(found):
    """Stubs declare the attributes of instances, code those of classes."""
    return {name: what[:2] + (without_values(what[2]),) if what[0] == 'class' else what for name, what in found.items() if what != 'value'}


class Stubs(unittest.TestCase):

    def test_they_tell_what_the_code_has(self):
        stubs = [path for path in sorted(FOLDER.rglob('*.pyi')) if path.name not in EXTENSIONS]
        self.assertGreater(len(stubs), 5)
        for stub in stubs:
            with self.subTest(stub.relative_to(FOLDER)):
                code, told = of_file(stub.with_suffix('.py')), of_file(stub)
                if stub.name == 'communicator.pyi':
                    # The options of init are named by the stub: see below.
                    code['init'] = told['init']
                constants = {name for name, what in code.items() if what == 'value'}
                self.assertLessEqual(constants, set(told))
                # A class that a call makes is among them.
                self.assertEqual(without_values({name: told[name] for name in set(told) - constants}), without_values(code))

    def test_every_module_of_the_core_has_one(self):
        for path in FOLDER.glob('*.py'):
            self.assertTrue(path.with_suffix('.pyi').exists(), path.name)

    def test_options_are_those_of_the_header(self):
        tree = ast.parse((FOLDER / 'communicator.pyi').read_text(encoding='utf-8'))
        init = next(node for node in tree.body if getattr(node, 'name', '') == 'init')
        fields = {name for name, _ in ffi.typeof('lockstep_communicator_options').fields} - {'struct_size'}
        self.assertEqual({name for name, _, _ in parameters(init)}, fields)
        for name in fields:
            self.assertIn(name, lockstep.init.__doc__)
        options = next(node for node in tree.body if getattr(node, 'name', '') == '_Options')
        fields = {name for name, _ in ffi.typeof('lockstep_collective_options').fields} - {'struct_size', 'timeout_ms', 'wait_ms'}
        self.assertEqual({each.target.id for each in options.body}, fields | {'timeout', 'asynchronous', 'stream'})

    def test_packages_pass_on_what_they_say(self):
        for stub in FOLDER.rglob('__init__.pyi'):
            with self.subTest(stub.relative_to(FOLDER)):
                self.assertEqual(passed_on(stub), passed_on(stub.with_suffix('.py')))


if __name__ == '__main__':
    unittest.main()
