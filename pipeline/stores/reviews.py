"""People's answers: what waits for one, and the history of those given, which is only ever added to."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import sqlalchemy as sa

from pipeline.errors import Reason, UserError
from pipeline.runs import ReviewAnswer, ReviewDetail, ReviewItem
from pipeline.stores.database import Database
from pipeline.stores.schema import answers, audit, runs, tenants, uploads, verdicts, videos
from pipeline.verdict import Answer, RunState

_JOINED = verdicts.join(runs).join(videos).outerjoin(uploads).outerjoin(tenants)
_WAITING = sa.and_(verdicts.c.answer == sa.literal_column("'review'"), verdicts.c.answered_at.is_(None))


class Reviews:
    """The part of the ledger that reviewers use. With a `tenant_id`, only that tenant's can be seen."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def reviews(self, tenant_id: UUID | None = None, *, limit: int = 100, offset: int = 0) -> list[ReviewItem]:
        """What waits for a person, the longest waiting first."""
        wanted = _select(tenant_id).where(_WAITING)
        with self.database.begin() as connection:
            rows = connection.execute(
                wanted.order_by(verdicts.c.created_at, verdicts.c.run_id, verdicts.c.position)
                .limit(limit)
                .offset(offset)
            ).all()
        return [_item(row) for row in rows]

    def review(self, run_id: UUID, question: str, tenant_id: UUID | None = None) -> ReviewDetail | None:
        with self.database.begin() as connection:
            return _detail(connection, run_id, question, tenant_id)

    def answer(
        self,
        run_id: UUID,
        question: str,
        *,
        answer: Answer,
        who: str,
        why: str,
        tenant_id: UUID | None = None,
    ) -> ReviewDetail:
        """Add a person's answer, the one that holds from now on. Any verdict can be answered, again and again.

        When nothing of the run waits any more it becomes `decided`, in the same transaction.
        """
        if answer not in {Answer.POSITIVE, Answer.NEGATIVE}:
            raise UserError(Reason.BAD_INPUT, "a person's answer is positive or negative")
        if not who.strip():
            raise UserError(Reason.BAD_INPUT, "an answer needs the name of who gave it")
        with self.database.begin() as connection:
            # Answers to one run take turns, so that the last of them sees that nothing waits any more.
            connection.execute(sa.select(runs.c.id).where(runs.c.id == run_id).with_for_update())
            before = _detail(connection, run_id, question, tenant_id)
            if before is None:
                raise UserError(Reason.BAD_INPUT, f"run {run_id} has no verdict on {question!r}")
            connection.execute(
                sa.insert(answers).values(run_id=run_id, question=question, answer=answer, who=who, why=why)
            )
            connection.execute(
                sa.update(verdicts)
                .where(verdicts.c.run_id == run_id, verdicts.c.question == question)
                .values(answered_at=sa.func.now())
            )
            _decide_if_complete(connection, run_id)
            connection.execute(
                sa.insert(audit).values(
                    actor=who,
                    action="answer",
                    subject=f"run:{run_id}",
                    detail={"question": question, "answer": answer, "instead_of": before.answer, "why": why},
                )
            )
            after = _detail(connection, run_id, question, tenant_id)
        if after is None:
            raise AssertionError("a verdict vanished within its transaction")
        return after


def _decide_if_complete(connection: sa.Connection, run_id: UUID) -> None:
    waits = sa.exists().where(verdicts.c.run_id == run_id, _WAITING)
    connection.execute(
        sa.update(runs)
        .where(runs.c.id == run_id, runs.c.state == RunState.IN_REVIEW, ~waits)
        .values(state=RunState.DECIDED, decided_at=sa.func.now(), updated_at=sa.func.now())
    )


def _select(tenant_id: UUID | None) -> sa.Select[Any]:
    wanted = sa.select(
        *verdicts.c,
        runs.c.policy,
        runs.c.result_key,
        videos.c.bucket,
        videos.c.key,
        tenants.c.name.label("tenant"),
    ).select_from(_JOINED)
    return wanted if tenant_id is None else wanted.where(uploads.c.tenant_id == tenant_id)


def _item(row: sa.Row[Any]) -> ReviewItem:
    return ReviewItem(
        run_id=row.run_id,
        question=row.question,
        video=f"s3://{row.bucket}/{row.key}",
        tenant=row.tenant,
        policy=row.policy,
        score=row.score,
        reason=row.reason,
        since=row.created_at,
        evidence=tuple(row.evidence),
    )


def _detail(connection: sa.Connection, run_id: UUID, question: str, tenant_id: UUID | None) -> ReviewDetail | None:
    row = connection.execute(
        _select(tenant_id).where(verdicts.c.run_id == run_id, verdicts.c.question == question)
    ).one_or_none()
    if row is None:
        return None
    given = connection.execute(
        sa.select(answers).where(answers.c.run_id == run_id, answers.c.question == question).order_by(answers.c.id)
    ).all()
    history = tuple(ReviewAnswer(Answer(past.answer), past.who, past.why, past.at) for past in given)
    machine_answer = Answer(row.answer)
    return ReviewDetail(
        item=_item(row),
        machine_answer=machine_answer,
        answer=history[-1].answer if history else machine_answer,
        history=history,
        result_key=row.result_key,
    )
