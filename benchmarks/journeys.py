"""How far the functions of one journey through the code lie apart: `hops / jumps back / re-entries`.

A journey starts at entry functions (a command, say) and follows the static call graph of the package, depth first, in the
order of evaluation: arguments before the call that takes them, a callee's own calls before the caller's next one. Each function
is read once, where it is first called or named; what is read so, in order, is the reading order. Then:

- a **hop** is a step of the reading order from a function in one file to a function in another file;
- a **jump back** is a hop into a file that was open before;
- a **re-entry** is a jump back to a caller: the file was left in the middle of a function, for what it calls elsewhere, and its
  next call is of a function in the same file. (The other jumps back are calls into a file that has served before.)

So hops less jumps back are the files beyond the first. The same can be counted between packages instead of files, which a
module that is cut in two does not change.

Calls are resolved without running anything: by imports, by names, by classes. The class of a value is taken from annotations of
parameters, fields and results, and from constructor calls. Where an object is made, these methods of its class are read, since
others call them: special methods (`__init__`, `__call__`, ...), `forward`, and what overrides a method of a base in raydist.
A call of a method that a Protocol declares goes to the classes made so far that have all its methods. A function that is named
and not called (passed on, or kept in a table) is read where it is named. Nested functions and lambdas are parts of the function
around them. What cannot be resolved (other packages, values of unknown class) is not followed.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, TypeAlias

FunctionNode: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
PACKAGE = "raydist"


class Distance(NamedTuple):
    """What a reader of a journey does."""

    hops: int
    jumps_back: int
    re_entries: int
    functions: int
    places: int  # files, or packages

    def __str__(self) -> str:
        return f"{self.hops} / {self.jumps_back} / {self.re_entries}"


@dataclass(eq=False)
class Module:
    """A file of the package, its names unresolved."""

    name: str
    file: str
    tree: ast.Module

    @cached_property
    def names(self) -> dict[str, ast.AST | Import]:
        found: dict[str, ast.AST | Import] = {}
        for node in _module_level(self.tree.body):
            if isinstance(node, ast.Import | ast.ImportFrom):
                found |= imports(node, self)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found[node.name] = node
            elif isinstance(node, ast.Assign):
                found |= {target.id: node for target in node.targets if isinstance(target, ast.Name)}
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                found[node.target.id] = node
        return found

    @property
    def is_package(self) -> bool:
        return self.file.endswith("__init__.py")


class Import(NamedTuple):
    """A name that stands for a module, or for a name in one."""

    module: str
    name: str | None


@dataclass(frozen=True)
class Function:
    module: Module
    node: FunctionNode
    owner: Class | None = None


@dataclass(frozen=True)
class Class:
    module: Module
    node: ast.ClassDef

    @property
    def methods(self) -> dict[str, FunctionNode]:
        return {node.name: node for node in self.node.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}

    @property
    def is_protocol(self) -> bool:
        return any(isinstance(base, ast.Name) and base.id == "Protocol" for base in self.node.bases)


@dataclass(frozen=True)
class Object:
    of: Class


@dataclass(frozen=True)
class Many:
    """A container, iterator or context manager of such values."""

    of: Value


Value: TypeAlias = Module | Function | Class | Object | Many | None


def _module_level(body: Iterable[ast.stmt]) -> Iterable[ast.stmt]:
    """Statements that run when the module is imported, also those below `if` and `try`."""
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try):
            yield from _module_level([*node.body, *node.orelse])
            for handler in getattr(node, "handlers", ()):
                yield from _module_level(handler.body)


def imports(node: ast.Import | ast.ImportFrom, module: Module) -> dict[str, Import]:
    """The names that an import statement binds."""
    if isinstance(node, ast.Import):
        return {
            alias.asname or alias.name.partition(".")[0]: Import(
                alias.name if alias.asname else alias.name.partition(".")[0], None
            )
            for alias in node.names
        }
    source = node.module or ""
    if node.level:
        above = module.name.split(".")[: len(module.name.split(".")) - node.level + module.is_package]
        source = ".".join([*above, *filter(None, [node.module])])
    return {alias.asname or alias.name: Import(source, alias.name) for alias in node.names}


class Package:
    """The modules of a package, and what the names in them stand for."""

    def __init__(self, root: Path) -> None:
        self.modules: dict[str, Module] = {}
        for path in sorted((root / PACKAGE).rglob("*.py")):
            file = path.relative_to(root)
            name = ".".join(file.with_suffix("").parts).removesuffix(".__init__")
            self.modules[name] = Module(name, file.as_posix(), ast.parse(path.read_text(encoding="utf-8")))

    def entry(self, place: str) -> Function:
        """The function of `FILE:FUNCTION`, such as raydist/cli.py:evaluate."""
        found = self.find(place)
        if not isinstance(found, Function):
            raise SystemExit(f"there is no function {place}: name an entry as FILE:FUNCTION, such as {PACKAGE}/cli.py:evaluate")
        return found

    def find(self, place: str) -> Value:
        """What FILE:NAME stands for; None where there is no such thing."""
        file, _, name = place.partition(":")
        module = next((module for module in self.modules.values() if module.file == file), None)
        return self.lookup(module, name) if module else None

    def lookup(self, module: Module, name: str) -> Value:
        """What a module-level name stands for; of constants, the class of their value is not asked."""
        node = module.names.get(name)
        if isinstance(node, Import):
            return self.imported(node)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            return Function(module, node)
        if isinstance(node, ast.ClassDef):
            return Class(module, node)
        return self.modules.get(f"{module.name}.{name}")

    def imported(self, what: Import) -> Value:
        module = self.modules.get(what.module)
        if what.name is None:
            return module
        if module is None:
            return self.modules.get(f"{what.module}.{what.name}")
        return self.lookup(module, what.name)

    def bases(self, of: Class) -> list[Class]:
        """The class and what it inherits from, of this package, nearest first."""
        found = [of]
        for base in of.node.bases:
            value = self.annotated(base, of.module)
            if isinstance(value, Object) and value.of not in found:
                found += [one for one in self.bases(value.of) if one not in found]
        return found

    def method(self, of: Class, name: str) -> Function | None:
        for one in self.bases(of):
            if name in one.methods:
                return Function(one.module, one.methods[name], of)
        return None

    def field(self, of: Class, name: str) -> Value:
        """The class of an attribute, by its annotation or by what `__init__` assigns."""
        for one in self.bases(of):
            for node in one.node.body:
                if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == name:
                    return self.annotated(node.annotation, one.module)
            if init := one.methods.get("__init__"):
                for statement in ast.walk(init):
                    if value := self._assigned(statement, name, init, one.module):
                        return value
        return None

    def _assigned(self, statement: ast.AST, name: str, init: FunctionNode, module: Module) -> Value:
        """What `self.name = ...` assigns: an annotated value, a parameter, or a new object."""
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        named = (isinstance(target, ast.Attribute) and target.attr == name for target in targets)
        if not isinstance(statement, ast.Assign | ast.AnnAssign) or not any(named):
            return None
        if isinstance(statement, ast.AnnAssign):
            return self.annotated(statement.annotation, module)
        value = statement.value
        if isinstance(value, ast.Name):
            parameters = [*init.args.args, *init.args.kwonlyargs]
            return next((self.annotated(one.annotation, module) for one in parameters if one.arg == value.id), None)
        return self.annotated(value.func, module) if isinstance(value, ast.Call) else None

    def annotated(self, annotation: ast.expr | None, module: Module) -> Value:
        """The value that an annotation promises: of `X | None` an X, of a container what is in it."""
        match annotation:
            case ast.Constant(value=str(text)):
                return self.annotated(ast.parse(text, mode="eval").body, module)
            case ast.Name(id=name):
                found = self.lookup(module, name)
                return Object(found) if isinstance(found, Class) else None
            case ast.Attribute(value=ast.Name(id=name), attr=attribute):
                owner = self.lookup(module, name)
                found = self.lookup(owner, attribute) if isinstance(owner, Module) else None
                return Object(found) if isinstance(found, Class) else None
            case ast.BinOp(left=left, right=right):
                return self.annotated(left, module) or self.annotated(right, module)
            case ast.Subscript(value=ast.Name(id="Annotated"), slice=ast.Tuple(elts=[first, *_])):
                return self.annotated(first, module)
            case ast.Subscript(value=ast.Name(id="Callable")):
                return None
            case ast.Subscript(value=value, slice=inner):
                if (found := self.annotated(value, module)) is not None:
                    return found  # a generic class of this package
                element = self.annotated(inner.elts[-1] if isinstance(inner, ast.Tuple) else inner, module)
                return Many(element) if element else None
        return None


@dataclass
class Journey:
    """Functions in the order in which they are read, each with the file that calls it."""

    package: Package
    without: Sequence[str] = ()  # files and folders that are not entered
    read: list[Function] = field(default_factory=list)
    callers: list[str] = field(default_factory=list)
    stack: list[Function] = field(default_factory=list)
    seen: set[ast.AST] = field(default_factory=set)
    made: list[Class] = field(default_factory=list)

    def go(self, entries: Sequence[str]) -> None:
        limit = sys.getrecursionlimit()
        sys.setrecursionlimit(max(limit, 20_000))
        for entry in entries:
            self.enter(self.package.entry(entry))
        sys.setrecursionlimit(limit)

    def assume(self, made: Value) -> None:
        """Take an object of a class for made before the journey, so that calls through a Protocol reach it."""
        if isinstance(made, Class):
            self.made.append(made)

    def enter(self, function: Function) -> None:
        """Read a function, and what it calls, unless it has been read."""
        if function.node in self.seen or function.module.file.startswith(tuple(self.without)):
            return
        self.seen.add(function.node)
        self.read.append(function)
        self.callers.append(self.stack[-1].module.file if self.stack else function.module.file)
        self.stack.append(function)
        _Body(self, function).walk()
        self.stack.pop()

    def make(self, made: Class) -> None:
        """Read what is called on every object of a class."""
        if made in self.made:
            return
        self.made.append(made)
        classes = self.package.bases(made)
        for name in [name for one in classes for name in one.methods]:
            special = (name.startswith("__") and name.endswith("__")) or name == "forward"
            overrides = sum(name in one.methods for one in classes) > 1
            if (special or overrides) and (method := self.package.method(made, name)):
                self.enter(method)

    def methods(self, of: Class, name: str) -> list[Function]:
        """What a call of a method may reach."""
        own = self.package.method(of, name)
        if of.is_protocol:
            fitting = [one for one in self.made if all(self.package.method(one, wanted) for wanted in of.methods)]
            methods = [method for one in fitting if (method := self.package.method(one, name))]
            return methods or [own] * bool(own)
        return [own] if own else []

    def distance(self, place: Callable[[str], str] = str) -> Distance:
        """How far apart the functions lie; with `place` (of a file), in larger places than files, such as packages."""
        kinds = self.kinds(place)
        back = kinds.count("back") + kinds.count("re-entry")
        places = {place(function.module.file) for function in self.read}
        return Distance(back + kinds.count("hop"), back, kinds.count("re-entry"), len(kinds), len(places))

    def kinds(self, place: Callable[[str], str] = str) -> list[str]:
        """Of each function read, how its reader comes to it; "" within a file."""
        places, callers = ([place(file) for file in files] for files in ([one.module.file for one in self.read], self.callers))
        opened, kinds = set(places[:1]), [""] * len(places)
        for at in range(1, len(places)):
            here = places[at]
            if here != places[at - 1]:
                known = "re-entry" if here == callers[at] else "back"
                kinds[at] = known if here in opened else "hop"
            opened.add(here)
        return kinds

    def lines(self) -> list[str]:
        """The reading order, for people."""
        return [
            f"{kind:9}{one.module.file}:{one.node.lineno} {one.owner.node.name + '.' if one.owner else ''}{one.node.name}"
            for kind, one in zip(self.kinds(), self.read)
        ]


class _Body(ast.NodeVisitor):
    """Reads one function's body in the order of evaluation; keeps what its names stand for."""

    def __init__(self, journey: Journey, function: Function) -> None:
        self.journey, self.package, self.function = journey, journey.package, function
        self.module = function.module
        self.names: dict[str, Value] = {}

    def walk(self) -> None:
        self._bind_parameters(self.function.node.args, self.function.owner)
        for statement in self.function.node.body:
            self.visit(statement)

    def _bind_parameters(self, arguments: ast.arguments, owner: Class | None = None) -> None:
        parameters = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        for number, parameter in enumerate(parameters):
            self.names[parameter.arg] = self.package.annotated(parameter.annotation, self.module)
            if owner and number == 0:
                self.names[parameter.arg] = Class(owner.module, owner.node) if parameter.arg == "cls" else Object(owner)

    # --- statements --------------------------------------------------------------------------------------------------

    def visit_Import(self, node: ast.Import) -> None:
        self.names |= {name: self.package.imported(what) for name, what in imports(node, self.module).items()}

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        self.names |= {name: self.package.imported(what) for name, what in imports(node, self.module).items()}

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self.names[node.name] = None
        self._bind_parameters(node.args)
        for statement in node.body:
            self.visit(statement)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._bind_parameters(node.args)
        self.value(node.body)

    def visit_Assign(self, node: ast.Assign) -> None:
        value = self.value(node.value)
        for target in node.targets:
            self._bind(target, value, node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        value = self.value(node.value) if node.value else None
        self._bind(node.target, self.package.annotated(node.annotation, self.module) or value)

    def visit_For(self, node: ast.For) -> None:
        self._loop(node.target, node.iter)
        for statement in [*node.body, *node.orelse]:
            self.visit(statement)

    def visit_With(self, node: ast.With) -> None:
        for item in node.items:
            value = self.value(item.context_expr)
            if item.optional_vars:
                self._bind(item.optional_vars, value.of if isinstance(value, Many) else value)
        for statement in node.body:
            self.visit(statement)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        for statement in node.body:
            self.visit(statement)

    def _loop(self, target: ast.expr, over: ast.expr) -> None:
        value = self.value(over)
        of = value.of if isinstance(value, Many) else None
        if isinstance(target, ast.Tuple) and len(target.elts) == 2 and _is_call_of(over, "items", "enumerate"):
            target = target.elts[1]
        self._bind(target, of)

    def _bind(self, target: ast.expr, value: Value, source: ast.expr | None = None) -> None:
        if isinstance(target, ast.Name):
            self.names[target.id] = value
        elif isinstance(target, ast.Tuple) and isinstance(source, ast.Tuple) and len(target.elts) == len(source.elts):
            for one, expression in zip(target.elts, source.elts):
                self._bind(one, self.value(expression))  # again: each function is read once
        elif isinstance(target, ast.Tuple):
            for one in target.elts:
                self._bind(one, None)
        else:
            self.value(target)

    # --- expressions -------------------------------------------------------------------------------------------------

    def visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.expr):
            self.value(node)
        else:
            super().visit(node)

    def value(self, node: ast.expr, *, called: bool = False) -> Value:
        """Read what an expression calls or names; the value's class, where it is known."""
        match node:
            case ast.Name():
                return self._noted(self._name(node.id), called)
            case ast.Attribute():
                return self._attribute(node, called)
            case ast.Call():
                return self._call(node)
            case ast.Lambda():
                self.visit_Lambda(node)
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                return self._comprehension(node)
            case ast.NamedExpr():
                self._bind(node.target, value := self.value(node.value))
                return value
            case ast.Subscript():
                value = self.value(node.value)
                self.value(node.slice)
                return value.of if isinstance(value, Many) else None
            case ast.IfExp():
                self.value(node.test)
                first, second = self.value(node.body), self.value(node.orelse)
                return first or second
            case ast.BoolOp():
                return next(filter(None, [self.value(one) for one in node.values]), None)
            case ast.List() | ast.Tuple() | ast.Set() | ast.Dict():
                elements = [*filter(None, node.keys), *node.values] if isinstance(node, ast.Dict) else node.elts
                found = next(filter(None, [self.value(one) for one in elements]), None)
                return Many(found) if isinstance(found, Object) else None
            case _:
                self.generic_visit(node)
        return None

    def _name(self, name: str) -> Value:
        if name in self.names:
            return self.names[name]
        node = self.module.names.get(name)
        if isinstance(node, Import) and node.name and (source := self.package.modules.get(node.module)):
            return self._constant(source, node.name) or self.package.imported(node)
        return self._constant(self.module, name) or self.package.lookup(self.module, name)

    def _constant(self, module: Module, name: str) -> Value:
        """A module's constant: the functions that it names are read by who uses it."""
        node = module.names.get(name)
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            return None
        if node in self.journey.seen:
            return self.package.annotated(node.annotation, module) if isinstance(node, ast.AnnAssign) else None
        self.journey.seen.add(node)
        elsewhere = _Body(self.journey, Function(module, self.function.node))
        found = elsewhere.value(node.value)
        return self.package.annotated(node.annotation, module) if isinstance(node, ast.AnnAssign) else found

    def _noted(self, value: Value, called: bool) -> Value:
        """A function or class that is passed on is used by others: it is read here."""
        if isinstance(value, Function) and not called:
            self.journey.enter(value)
        if isinstance(value, Class) and not called:
            self.journey.make(value)
        return value

    def _attribute(self, node: ast.Attribute, called: bool) -> Value:
        owner = self.value(node.value, called=True)
        if isinstance(owner, Module):
            return self._noted(self._constant(owner, node.attr) or self.package.lookup(owner, node.attr), called)
        if isinstance(owner, Many):
            return owner if node.attr in ("values", "items", "get", "pop", "copy") else None
        if not isinstance(owner, Object | Class):
            return None
        reached = self.journey.methods(owner.of if isinstance(owner, Object) else owner, node.attr)
        if not reached:
            return self.package.field(owner.of, node.attr) if isinstance(owner, Object) else None
        if _is_property(reached[0].node):
            for method in reached:
                self.journey.enter(method)
            return self._result(reached[0])
        for method in reached[1:]:
            self.journey.enter(method)
        return self._noted(reached[0], called)

    def _call(self, node: ast.Call) -> Value:
        if isinstance(node.func, ast.Name) and node.func.id in ("isinstance", "issubclass"):
            self.value(node.args[0])
            return None
        function = self._super(node.func) or self.value(node.func, called=True)
        arguments = [self.value(one) for one in [*node.args, *(keyword.value for keyword in node.keywords)]]
        match function:
            case Function():
                self.journey.enter(function)
                return self._result(function)
            case Class():
                self.journey.make(function)
                return Object(function)
            case Object(of=of) if method := self.package.method(of, "__call__"):
                self.journey.enter(method)
                return self._result(method)
            case Many(of=of):
                return of if _is_call_of(node, "get", "pop") else function
        if _is_call_of(node, "list", "sorted", "tuple", "iter", "enumerate", "reversed", "next", "replace", "min", "max"):
            found = arguments[-1 if _is_call_of(node, "min", "max") else 0] if arguments else None
            return found.of if isinstance(found, Many) and _is_call_of(node, "next", "min", "max") else found
        return None

    def _super(self, node: ast.expr) -> Value:
        match node:
            case ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr=name) if self.function.owner:
                for base in self.package.bases(self.function.owner):
                    if name in base.methods and base.methods[name] is not self.function.node:
                        return Function(base.module, base.methods[name], self.function.owner)
        return None

    def _result(self, function: Function) -> Value:
        returns = function.node.returns
        if isinstance(returns, ast.Name) and returns.id == "Self" and function.owner:
            return Object(function.owner)
        return self.package.annotated(returns, function.module)

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> Value:
        for generator in node.generators:
            self._loop(generator.target, generator.iter)
            for condition in generator.ifs:
                self.value(condition)
        if isinstance(node, ast.DictComp):
            self.value(node.key)
        found = self.value(node.value if isinstance(node, ast.DictComp) else node.elt)
        return Many(found) if isinstance(found, Object) else None


def _is_call_of(node: ast.expr, *names: str) -> bool:
    match node:
        case ast.Call(func=ast.Name(id=name)) | ast.Call(func=ast.Attribute(attr=name)):
            return name in names
    return False


def _is_property(node: FunctionNode) -> bool:
    return any(isinstance(one, ast.Name) and one.id in ("property", "cached_property") for one in node.decorator_list)
