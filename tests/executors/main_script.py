"""A main script whose own function runs in a child."""

import asyncio

from executor_bodies import defined

from stepwell.executors.base import RemoteError
from stepwell.executors.process import ProcessExecutor


class Mine(Exception):
    pass


def square(number: int) -> int:
    if number < 0:
        raise Mine
    return number * number


async def main() -> None:
    print("once", flush=True)
    body = defined(square)
    processes = ProcessExecutor(1)
    print((await processes.run(body, body.input(3))).decode())
    try:
        await processes.run(body, body.input(-1))
    except RemoteError as error:
        print(error.type)
    await processes.close()


if __name__ == "__main__":
    asyncio.run(main())
