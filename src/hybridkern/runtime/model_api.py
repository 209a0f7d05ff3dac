"""The public face of a loaded model: generate, chat, logits."""

from __future__ import annotations

import os
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from hybridkern.errors import ArgumentError, HybridKernError
from hybridkern.gguf import GGUFFile, require_finite
from hybridkern.model import LoadedModel
from hybridkern.plan.plan import Plan
from hybridkern.text import ChatTemplate, Vocabulary

from .arguments import LoadOptions, token_ids
from .engine import Engine
from .generation import Request, generate
from .planning import N_SEQ, Planner, engine_placement, replanned
from .session import Session
from .turn import Turn

if TYPE_CHECKING:
    import numpy as np

    from .piece import Piece


def read_vocabulary(path: str | os.PathLike[str]) -> Vocabulary:
    """The vocabulary of a model file, without its tensors."""
    with GGUFFile.open(path) as file:
        return Vocabulary.from_metadata(file.metadata)


class Model:
    """A loaded model. Close it, or use it in a `with` statement, to give its memory back at once."""

    def __init__(
        self,
        file: GGUFFile,
        options: LoadOptions,
        progress: Callable[[int, int], None] | None = None,
        tap: Callable[[LoadedModel], LoadedModel] | None = None,
    ) -> None:
        """Use `hybridkern.load`."""
        self.closed = True  # until everything below is there
        self.file = file
        loaded = LoadedModel.from_gguf(file)
        if tap is not None:
            loaded = tap(loaded)
            options = replace(options, tuned=False)  # the plan that was measured knows of no taps
        if options.validate:
            require_finite(file)
        self.vocabulary = Vocabulary.from_metadata(file.metadata)
        self.loaded = loaded
        self.config = loaded.config
        self.n_vocab: int = loaded.config.n_vocab
        self.long_after = loaded.long_after
        planner = Planner(loaded, file, options)
        self.plan, self.engine = replanned(partial(self._engine, planner, progress), planner)
        self.kv_type, self.n_ctx = self.plan.kv_type, self.plan.n_ctx
        if self.n_ctx > loaded.config.context_length:
            warnings.warn(
                f"n_ctx = {self.n_ctx} is more than the {loaded.config.context_length} tokens that the model was "
                "trained with; expect nonsense beyond them",
                stacklevel=4,
            )
        if file.mmap:
            file.check_intact()  # what was lost while it was packed reads as zeros
        self.turn = _Turn(self)
        self.sessions: weakref.WeakSet[Session] = weakref.WeakSet()
        self.given: set[int] = set()  # sequences that sessions have or had
        self.untidy = False  # some of them may have none any more
        self._templates: dict[str | None, ChatTemplate] = {}
        self.closed = False

    def _engine(self, planner: Planner, progress: Callable[[int, int], None] | None, plan: Plan) -> Engine:
        """That follows the plan."""
        options = planner.options
        for text in plan.notes:
            warnings.warn(text, stacklevel=6)
        return Engine(
            self.loaded,
            self.file,
            n_ctx=plan.n_ctx,
            threads=options.threads,
            threads_batch=options.threads_batch,
            n_batch=options.n_batch,
            n_ubatch=plan.assignment.n_ubatch,
            n_seq=N_SEQ,
            n_kv_pages=plan.kv_pages,
            kv_type=plan.kv_type,
            progress=progress,
            repack=plan.packed,
            **engine_placement(plan),
        )

    # text and tokens

    def tokenize(self, text: str, special: bool = False, bos: bool | None = None) -> list[int]:
        """Token ids of `text`. special: control tokens in the text count as such; bos: None is what the file says."""
        if not isinstance(text, str):
            raise ArgumentError(f"text is {text!r}: it must be a str")
        return self.vocabulary.encode(text, special=special, bos=bos)

    def detokenize(self, ids: Iterable[int]) -> str:
        """The text of tokens, control tokens included."""
        return self.vocabulary.decode(token_ids("ids", ids, self.vocabulary.n_tokens))

    def prompt_ids(self, prompt: str | Sequence[int]) -> list[int]:
        """The tokens of a prompt: of a text with its control tokens, or ids as they are; BOS for an empty one."""
        if isinstance(prompt, str):
            ids = self.vocabulary.encode(prompt, special=True, bos=self.vocabulary.add_bos)
        else:
            ids = token_ids("prompt", prompt, self.n_vocab)
        if ids:
            return ids
        if self.vocabulary.bos_id is None:
            raise ArgumentError("prompt is empty, and the vocabulary has no BOS token to begin with")
        return [self.vocabulary.bos_id]

    def chat_ids(self, messages: Sequence[Any], options: dict[str, Any]) -> tuple[list[int], dict[str, Any]]:
        """The tokens of a conversation, and the options that are left for generation."""
        options = dict(options)
        source = options.pop("template", None)
        variables = options.pop("template_variables", None) or {}
        if source not in self._templates:
            self._templates[source] = ChatTemplate.of(self.vocabulary, source)
        return self._templates[source].encode_chat(messages, **variables), options

    # computing

    def logits(self, ids: Sequence[int], rows: Iterable[int] | None = None) -> np.ndarray:
        """Logits at the positions `rows` (None: all) of the sequence `ids`: float32 [rows][n_vocab]."""
        with self.session() as session:
            return session.logits(ids, rows)

    def generate(self, prompt: str | Sequence[int], **options: Any) -> Iterator[Piece]:
        """Pieces of text that continue `prompt`, a text or token ids.

        max_tokens=64          most pieces; None: until the model ends or the context is full
        temperature=0.8        0: the likeliest token, whatever the seed
        top_k=40, top_p=0.95, min_p=0.05, typical_p=1      0 and 1 are off
        repeat_penalty=1, repeat_last_n=64, presence_penalty=0, frequency_penalty=0
        mirostat=0, mirostat_tau=5, mirostat_eta=0.1    mirostat 1 or 2 in place of top_k ... typical_p
        logit_bias=None        {token id: what is added to its logit}
        seed=None              None draws one
        stop=None              a text or several: generation ends before the first of them
        ignore_eos=False       go on after an end token
        show_special=False     control tokens become text too

        Arguments are checked at once; computing begins with the first piece. Leaving the loop early frees the sequence.
        """
        return generate(self, Request.of(self, self.prompt_ids(prompt), **options))

    def chat(self, messages: Sequence[Any], **options: Any) -> Iterator[Piece]:
        """Pieces of the answer to `messages`, a list of {"role": ..., "content": ...}.

        Options as for `generate`, and `template` (a jinja template in place of the file's) and `template_variables`
        (a dict that the template sees, such as {"enable_thinking": False}).
        """
        ids, options = self.chat_ids(messages, options)
        return generate(self, Request.of(self, ids, **options))

    def session(self) -> Session:
        """A sequence that stays: what it is asked next reuses the prefix that it shares with what it has."""
        self.turn.sweep()  # of what Ctrl-C kept a session from giving back
        with self.turn:
            return self.own(self.engine.new_sequence(self.given))

    def own(self, sequence: int, ids: Iterable[int] = (), variant: int = 0) -> Session:
        """A session that owns `sequence`. The caller has the turn."""
        session = Session(self, sequence, ids, variant)
        self.sessions.add(session)
        return session

    def check_file(self) -> None:
        """Raise GGUFError where results cannot be trusted: what a mapped file lost meanwhile reads as zeros."""
        if self.file.mmap:
            self.file.check_intact()

    # ownership

    def release(self) -> None:
        """Free what no session owns, now or after the call under way. Finalisers come here, from any thread."""
        self.untidy = True
        self.turn.sweep()

    def describe(self) -> str:
        """What runs where, with which kernels, in how much memory."""
        return "\n".join([*self.plan.summary(), self.engine.describe()])

    def close(self) -> None:
        """Give memory and threads back; sessions and generators of the model raise an error afterwards."""
        if not self.closed:
            with self.turn:
                self.closed = True
                self.engine.close()
                self.file.close()
                del self.loaded  # its weights are views that would keep the file mapped

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"n_ctx {self.n_ctx}"
        return f"<hybridkern.Model {os.path.basename(self.file.path)!r}, {self.config.architecture.name}, {state}>"


class _Turn(Turn):
    """One caller at a time works with the engine; whoever ends a turn frees the sequences that were given up during it.

    A finaliser may run in the middle of a call of its own thread, and must then leave its sequence for later.
    """

    def __init__(self, model: Model) -> None:
        super().__init__()
        self._model = model

    def begin(self) -> None:
        super().begin()
        if self._model.closed:
            raise HybridKernError("the model is closed")

    def end(self) -> None:
        if self._model.untidy:
            self.sweep()

    def sweep(self) -> None:
        """Free the sequences that no session owns, if that is possible without waiting."""
        self.attempt(self._free_orphans)

    def _free_orphans(self) -> None:
        # By comparison, not by a list of what was given up: Ctrl-C may come between any two lines of a `close`.
        model = self._model
        model.untidy = False
        if model.closed or self._inherited:
            return
        owned = {session.sequence for session in list(model.sessions)}
        for sequence in model.given - owned:
            if model.engine.holds(sequence):
                model.engine.free(sequence)
            model.given.discard(sequence)
